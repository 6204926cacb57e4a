"""A-GEM: averaged gradient episodic memory (Chaudhry et al. 2019, sources.md#agem)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from par.methods.bases.memory import Rehearsal
from par.methods.bases.method import LearningTask, Step
from par.networks.heads import joint_logits
from par.schema import Count
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

    def start_task(self, task: LearningTask, step: Step) -> None:
        super().start_task(task, step)
        self._reference_batch = self.hyper.reference_batch or step.recipe.batch_size

    def after_backward(self) -> None:
        if self.recall is None:
            return
        images, labels, positions = self.recall.draw(self._reference_batch)
        every = torch.arange(len(positions), device=self.device)
        with autocast(self.device):
            logits = joint_logits(self.heads, self.trunk(images), self.task_ids[:-1])[every, positions]
            loss = cross_entropy(logits, labels)
        parameters = [*self.trunk.parameters(), *self.heads.parameters()]
        project(parameters, torch.autograd.grad(loss, parameters, allow_unused=True))


def project(parameters: Sequence[nn.Parameter], reference: Sequence[Tensor | None]) -> None:
    """Make the gradients of ``parameters`` orthogonal to ``reference`` where they point against it.

    ``None`` on either side stands for a gradient of zeros.
    """
    pairs = [(parameter, other) for parameter, other in zip(parameters, reference, strict=True) if other is not None]
    nothing = torch.zeros((), device=parameters[0].device)
    products = ((parameter.grad * other).sum() for parameter, other in pairs if parameter.grad is not None)
    product = sum(products, start=nothing)
    if product >= 0:
        return
    squared_norm = sum((other.square().sum() for _, other in pairs), start=nothing)
    scale = product / squared_norm.clamp_min(torch.finfo(squared_norm.dtype).tiny)
    for parameter, other in pairs:
        if parameter.grad is None:
            parameter.grad = -scale * other
        else:
            parameter.grad.sub_(scale * other)
