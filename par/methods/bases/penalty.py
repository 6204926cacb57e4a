"""What EWC and MAS share: a quadratic penalty on the trunk's weights, each weighted by its importance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from par import seeding
from par.methods.bases.method import LearningTask, SharedTrunk, Step
from par.schema import Count, Fraction
from par.training import trainer

CHUNK = 32  # images whose gradients are held at once: 77 MB at width 64; 16 to 64 are within 5% (sources.md#cpu)


@dataclass(frozen=True)
class PenaltyHyper:
    """Hyper-parameters of every quadratic penalty; each method adds the strength ``weight`` and its importance."""

    merge: Literal["mean", "sum", "online"] = "mean"  # PAR's code, which its weights belong to (sources.md#ewc)
    decay: Fraction = 0.9  # of old importance, online only (MNTDP on S_long, sources.md#ewc)
    samples: Count | None = 1024  # training images of the exact estimate (MNTDP, sources.md#ewc); null: all


class QuadraticPenalty(SharedTrunk):
    """L = CE + weight / 2 * sum_i F_i (theta_i - a_i)^2 over the weights of the trunk.

    Heads need no term: old ones are not trained, and the current one is new. After each task its importance F_t, found
    at its solution theta_t, is merged into F and the anchor a:

        mean     F <- (F_t + t F) / (t + 1),  a <- theta_t      (t = 0, 1, ...; PAR's code)
        online   F <- F_t + decay F,          a <- theta_t      (MNTDP)
        sum      F <- F_t + F,                a <- (F_t theta_t + F a) / (F_t + F)

    ``sum`` is one penalty a task with an anchor of its own (MNTDP, offline): sum_j F_j (theta - theta_j)^2 equals
    F (theta - a)^2 up to a constant, so state and time per step do not grow with the tasks.
    """

    importance: Tensor
    anchor: Tensor

    def grow(self, record: dict[str, Any]) -> None:
        super().grow(record)
        if len(self.tasks) == 1:
            n_weights = sum(parameter.numel() for parameter in self.trunk.parameters())
            for name in ("importance", "anchor"):
                self.register_buffer(name, torch.zeros(n_weights, device=self.device))

    def loss(self, batch: trainer.Batch) -> Tensor:
        total = super().loss(batch)
        if len(self.tasks) > 1:
            distance = flatten(self.trunk.parameters()) - self.anchor
            total = total + self.hyper.weight / 2 * (self.importance * distance.square()).sum()
        return total

    def end_task(self, task: LearningTask, step: Step) -> None:
        new, learned = self.estimate(task, step), len(self.tasks) - 1
        weights = flatten(self.trunk.parameters()).detach()
        if self.hyper.merge == "mean":
            self.importance = (new + learned * self.importance) / (learned + 1)
        elif self.hyper.merge == "online":
            self.importance = new + self.hyper.decay * self.importance
        else:
            total = new + self.importance
            # Where nothing is important the anchor does not matter; the current weights keep it finite.
            weights = torch.where(total > 0, (new * weights + self.importance * self.anchor) / total, weights)
            self.importance = total
        self.anchor = weights

    def n_state(self) -> int:
        return self.importance.numel() + self.anchor.numel()

    def estimate(self, task: LearningTask, step: Step) -> Tensor:
        """Importance [P] of every weight of the trunk for the task just learned."""
        raise NotImplementedError

    def objective(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over images, of logits [n, K] and labels [n], whose gradients tell importance."""
        raise NotImplementedError

    def strength(self, gradient: Tensor, n_images: int) -> Tensor:
        """Importance that a gradient of :meth:`objective` over ``n_images`` expresses, elementwise."""
        raise NotImplementedError

    def exact_importance(self, task: LearningTask, step: Step) -> Tensor:
        """Mean of the strengths of single images' gradients, on ``hyper.samples`` training images as they are.

        In eval mode batch normalisation treats every image by itself, so ``vmap`` over single images is exact. It costs
        1.6 times as much an image as a training step (width 64, 32 px, 1 thread; 2.0 in channels_last; sources.md#cpu).
        """
        order = torch.randperm(len(task.train), generator=seeding.torch_generator(step.key, "importance"))
        gradients_of = vmap(self._gradient(task), in_dims=(None, 0, 0))
        weights, total = self._weights(), torch.zeros_like(self.importance)
        for rows in (chosen := order[: self.hyper.samples]).split(CHUNK):
            images, labels = task.train.batch(rows).contiguous(), task.train.labels[rows.to(self.device)]
            gradients = gradients_of(weights, images[:, None], labels[:, None]).values()
            total = total + flatten(self.strength(gradient, 1).sum(dim=0) for gradient in gradients)
        return total / len(chosen)

    def minibatch_importance(self, task: LearningTask, step: Step) -> Tensor:
        """Mean over mini-batches of the strength of each one's mean gradient: one epoch of augmented batches, as in
        PAR's code (sources.md#ewc), but in eval mode, where the code lets batch-normalisation statistics drift."""
        order, augmentation = (
            seeding.torch_generator(step.key, f"importance/{name}") for name in ("order", "augmentation")
        )
        gradient_of, weights = self._gradient(task), self._weights()
        total, chunks = (
            torch.zeros_like(self.importance),
            list(trainer.batches(len(task.train), step.recipe.batch_size, order)),
        )
        for rows in chunks:
            images, labels = task.train.batch(rows, augmentation), task.train.labels[rows.to(self.device)]
            gradients = gradient_of(weights, images, labels).values()
            total = total + flatten(self.strength(gradient, len(rows)) for gradient in gradients)
        return total / len(chunks)

    def _weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().contiguous() for name, weight in self.trunk.named_parameters()}

    def _gradient(self, task: LearningTask) -> Callable[..., dict[str, Tensor]]:
        """(weights by name, images [n, 3, H, W], labels [n]) -> gradients by name of the objective."""

        def objective(weights: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
            features = functional_call(self.trunk, weights, (images,))
            return self.objective(self.heads(features, task.id), labels)

        return grad(objective)


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of ``tensors`` as one vector, whatever their memory layout."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
