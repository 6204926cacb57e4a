"""HAT: hard attention to the task, learned masks over one network's units (Serra et al. 2018, sources.md#hat)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn

from par.config import Recipe
from par.methods.bases.method import LearningTask, Step
from par.methods.bases.protected import ProtectedTrunk
from par.networks.gates import Connection, Gates, gates_of
from par.schema import NonNegative, Positive
from par.training import trainer
from par.training.losses import cross_entropy

MAX_EMBEDDING = 6.0  # embeddings are clamped to it after every step
MAX_EXPONENT = 50.0  # in the compensation: cosh overflows float32 at 89


class Hat(ProtectedTrunk):
    """Every hidden layer l has an embedding e_l of each task (sources.md#hat); its units are multiplied by

        a_l = sigmoid(s e_l),    s = 1/s_max + (s_max - 1/s_max) (b - 1)/(B - 1) in batch b of B, s_max in evaluation.

    A_l is the maximum over earlier tasks at s_max. Loss and gradients of task t:

        L = CE + sparsity * sum_l,i a_l,i (1 - A_l,i) / sum_l,i (1 - A_l,i)
        weight (out i, in k): g <- g (1 - min(A_l,i, A_{l-1},k)),    bias: g <- g (1 - A_l,i)
        embedding: g <- g (s_max / s) (cosh(clamp(s e, 50)) + 1) / (cosh(e) + 1), then e is clamped to 6.

    An epoch of a single batch cannot anneal; s then grows over the epochs instead. On the light ResNet18 the gates
    stand behind the stem and, in each block, behind the first normalisation and behind the sum, and each task has
    batch normalisation of its own. A is recomputed from the embeddings, so that nothing else is kept between tasks.
    """

    capturable = True
    alexnet_norm = False
    shared_affine = False

    _recipe: Recipe  # of the step that is being learned
    _n_batches: int  # per epoch
    _epoch: int
    _drawn: Mapping[str, Tensor]  # of the latest batch
    gates: Gates  # from the first task on

    @dataclass(frozen=True)
    class Hyper:
        """Defaults: HAT's own runs (sources.md#hat), which train by SGD at 0.05 without momentum or decay."""

        network: Literal["alexnet", "resnet"] = "alexnet"  # resnet: that of the network block
        width: Positive = 1.0  # factor of the AlexNet's layer sizes; MNTDP's wider HAT: 2.5
        s_max: Positive = 400.0
        sparsity: NonNegative = 0.75
        annealing: Literal["paper", "code"] = "paper"  # code: s by the share of images seen, never reaches s_max
        # In place of the recipe's: compensated gradients of embeddings are s_max times those of weights and would, at
        # the usual 10, leave nothing of the weights' own.
        clip_norm: Positive | None = 10000.0

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.embeddings = nn.ModuleDict()
        self._cumulative: list[Tensor] = []  # A_l
        self._factors: list[tuple[Tensor, Tensor]] = []  # parameters and what their gradients are multiplied by

    def own_recipe(self, recipe: Recipe) -> Recipe:
        return replace(super().own_recipe(recipe), clip_norm=self.hyper.clip_norm)

    def grow(self, record: dict[str, Any]) -> None:
        first = not self.tasks
        super().grow(record)
        if first:
            self.gates = gates_of(self.trunk)
        own = nn.ParameterList(torch.randn(size) for size in self.gates.sizes)
        self.embeddings[str(record["task"])] = own.to(self.device)

    def start_task(self, task: LearningTask, step: Step) -> None:
        super().start_task(task, step)
        self._recipe = step.recipe
        self._n_batches = sum(1 for _ in trainer.batches(len(task.train), step.recipe.batch_size, torch.Generator()))
        earlier = [record["task"] for record in self.tasks[:-1]]
        self._cumulative = self.cumulative_masks(earlier)
        self._factors = []
        for connection in self.gates.connections if earlier else ():
            weight, bias = self.gradient_factors(connection)
            self._factors.append((connection.layer.weight, weight))
            if connection.layer.bias is not None:
                self._factors.append((connection.layer.bias, bias))

    def embeddings_of(self, task_id: int) -> nn.ParameterList:
        """One embedding [units] for each gate."""
        embeddings = self.embeddings[str(task_id)]
        assert isinstance(embeddings, nn.ParameterList)
        return embeddings

    def masks(self, task_id: int, scale: float | Tensor) -> list[Tensor]:
        """One mask [units] in (0, 1) for each gate, at s = ``scale``."""
        return [torch.sigmoid(scale * embedding) for embedding in self.embeddings_of(task_id)]

    @torch.no_grad()
    def cumulative_masks(self, task_ids: Sequence[int]) -> list[Tensor]:
        """Maximum of the tasks' masks at s_max for each gate; zeros for no task."""
        total = [torch.zeros(size, device=self.device) for size in self.gates.sizes]
        for task_id in task_ids:
            total = list(map(torch.maximum, total, self.masks(task_id, self.hyper.s_max)))
        return total

    def gradient_factors(self, connection: Connection) -> tuple[Tensor, Tensor]:
        """Factors of the gradients of a layer's weights (to be broadcast) and biases [n_out]."""
        weight, bias = self.gates.between(connection, self._cumulative)
        return 1 - weight, 1 - bias

    def modules_to_train(self) -> list[nn.Module]:
        return [*super().modules_to_train(), self.embeddings_of(self.current.id)]

    def start_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def draw(self, sizes: Sequence[int]) -> Sequence[Mapping[str, Tensor]]:
        """``scale``: s of each batch; ``gain``: s_max / s. Both float32 []."""
        scales = [self.scale(n_seen) for n_seen in accumulate(sizes[:-1], initial=0)]
        return [{"scale": torch.tensor(scale), "gain": torch.tensor(self.hyper.s_max / scale)} for scale in scales]

    def scale(self, n_seen: int) -> float:
        """s of the batch that comes after ``n_seen`` images of the epoch."""
        if self.hyper.annealing == "code":
            progress = n_seen / len(self.current.train)
        elif self._n_batches > 1:
            progress = (n_seen // self._recipe.batch_size) / (self._n_batches - 1)
        else:
            progress = (self._epoch + 1) / self._recipe.epochs
        return 1 / self.hyper.s_max + (self.hyper.s_max - 1 / self.hyper.s_max) * progress

    def loss(self, batch: trainer.Batch) -> Tensor:
        self._clamp()
        self._drawn = batch.drawn
        return self._loss(batch, batch.drawn["scale"])

    def task_loss(self, batch: trainer.Batch, masks: list[Tensor]) -> Tensor:
        """Cross-entropy of the current task under its annealed masks."""
        features = self.masked_features(batch.images, self.current.id, masks)
        return cross_entropy(self.heads(features, self.current.id), batch.labels)

    def validation_loss(self, batch: trainer.Batch) -> Tensor:
        """The loss at s_max, as in the authors' code."""
        return self._loss(batch, self.hyper.s_max)

    def _loss(self, batch: trainer.Batch, scale: float | Tensor) -> Tensor:
        masks = self.masks(self.current.id, scale)
        return self.task_loss(batch, masks) + self.hyper.sparsity * sparsity(masks, self._cumulative)

    def after_backward(self) -> None:
        super().after_backward()
        for parameter, factor in self._factors:
            assert parameter.grad is not None
            parameter.grad.mul_(factor)
        for embedding in self.embeddings_of(self.current.id):
            embedding.grad.mul_(compensation(embedding.detach(), **self._drawn))

    def end_epoch(self, epoch: int, valid_accuracy: float) -> None:
        self._clamp()

    def _clamp(self) -> None:
        """Due after every step of the optimiser, done before the next batch and before weights are kept."""
        with torch.no_grad():
            for embedding in self.embeddings_of(self.current.id):
                embedding.clamp_(-MAX_EMBEDDING, MAX_EMBEDDING)

    def end_task(self, task: LearningTask, step: Step) -> None:
        self._cumulative, self._factors = [], []

    def features(self, images: Tensor, task_id: int) -> Tensor:
        return self.masked_features(images, task_id, self.masks(task_id, self.hyper.s_max))

    def masked_features(self, images: Tensor, task_id: int, masks: Sequence[Tensor]) -> Tensor:
        """Features [n, d] of the images under masks that need not be the task's own."""
        self.select(task_id)
        return self.gates.features(self.trunk, images, masks)


def sparsity(masks: Sequence[Tensor], cumulative: Sequence[Tensor]) -> Tensor:
    """Share of the units left free by earlier tasks (``cumulative``) that ``masks`` use.

    Less than one free unit counts as one: a full network has nothing left to divide by.
    """
    free = torch.cat([1 - mask for mask in cumulative])
    return (torch.cat(list(masks)) * free).sum() / free.sum().clamp(min=1)


def compensation(embedding: Tensor, scale: Tensor, gain: Tensor) -> Tensor:
    """Factor [units] that gives the gradient of an embedding the size it has at s = 1, times s_max.

    Args:
        scale, gain: s and s_max / s, float32 [].
    """
    exponent = (scale * embedding).clamp(-MAX_EXPONENT, MAX_EXPONENT)
    return gain * (torch.cosh(exponent) + 1) / (torch.cosh(embedding) + 1)
