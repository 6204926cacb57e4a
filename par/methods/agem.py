"""A-GEM: averaged gradient episodic memory (Chaudhry et al. 2019, sources.md#agem)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from par.methods.bases.memory import Rehearsal
from par.methods.bases.method import LearningTask, Step
from par.networks.heads import joint_logits
from par.schema import Count
from par.training import trainer
from par.training.losses import cross_entropy
from par.training.precision import autocast


class AGem(Rehearsal):
    """Where the gradient g of the current batch would raise the loss on past tasks, it is projected (sources.md#agem):

        g <- g - (<g, g_ref> / <g_ref, g_ref>) g_ref      if <g, g_ref> < 0

    g_ref is the gradient of the mean CE of a random batch of the memory, each image through its own task's head. Both
    are over trunk and all heads, with 0 where a head is not involved: an old head moves by projected steps alone. As
    in Mammoth's code either pass is in train mode, normalised by its own batch.
    """

    @dataclass(frozen=True)
    class Hyper:
        """PAR's rows come from Mammoth's code with a memory of unknown size (sources.md#agem)."""

        per_class: Count = 13  # A-GEM's ring buffer on split CIFAR; Mammoth stores one batch a task (sources.md#agem)
        reference_batch: Count | None = None  # null: the batch size, as in Mammoth; A-GEM's own: 256 (sources.md#agem)

    capturable = True

    def start_task(self, task: LearningTask, step: Step) -> None:
        super().start_task(task, step)
        self._reference_batch = self.hyper.reference_batch or step.recipe.batch_size

    def draw(self, sizes: Sequence[int]) -> Sequence[Mapping[str, Tensor]]:
        return super().draw(sizes) if self.recall is None else [self.recall.draw(self._reference_batch) for _ in sizes]

    def loss(self, batch: trainer.Batch) -> Tensor:
        self._drawn = batch.drawn
        return super().loss(batch)

    def after_backward(self) -> None:
        if self.recall is None:
            return
        images, labels, positions = self.recall.batch(self._drawn)
        every = torch.arange(len(positions), device=self.device)
        with autocast(self.device):
            logits = joint_logits(self.heads, self.trunk(images), self.task_ids[:-1])[every, positions]
            loss = cross_entropy(logits, labels)
        parameters = [*self.trunk.parameters(), *self.heads.parameters()]
        idle = [parameter for parameter in parameters if parameter.grad is None]
        against = project(parameters, torch.autograd.grad(loss, parameters, allow_unused=True))
        self._at_rest = idle, ~against

    def at_rest(self) -> tuple[Sequence[nn.Parameter], Tensor] | None:
        """Old heads, which neither decay nor go on by momentum in a step that is not projected."""
        return self._at_rest if self.recall is not None else None


def project(parameters: Sequence[nn.Parameter], reference: Sequence[Tensor | None]) -> Tensor:
    """Make the gradients of ``parameters`` orthogonal to ``reference`` where they point against it.

    ``None`` on either side stands for a gradient of zeros. Returns whether they pointed against it (bool []).
    """
    pairs = [(parameter, other) for parameter, other in zip(parameters, reference, strict=True) if other is not None]
    nothing = torch.zeros((), device=parameters[0].device)
    products = ((parameter.grad * other).sum() for parameter, other in pairs if parameter.grad is not None)
    product = sum(products, start=nothing)
    against = product < 0
    if against.device.type == "cpu" and not against:  # nobody waits for the answer there; elsewhere the scale is 0
        return against
    squared_norm = sum((other.square().sum() for _, other in pairs), start=nothing)
    scale = product / squared_norm.clamp_min(torch.finfo(squared_norm.dtype).tiny)
    scale = torch.where(against, scale, nothing)
    for parameter, other in pairs:
        if parameter.grad is None:
            parameter.grad = -scale * other
        else:
            parameter.grad.sub_(scale * other)
    return against
