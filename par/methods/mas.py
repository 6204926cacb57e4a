"""MAS: memory aware synapses (Aljundi et al. 2018, sources.md#mas)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from par.methods.bases.method import LearningTask, Step
from par.methods.bases.penalty import PenaltyHyper, QuadraticPenalty
from par.schema import NonNegative


class Mas(QuadraticPenalty):
    """A quadratic penalty (:class:`QuadraticPenalty`) with the sensitivity of the outputs z, which needs no labels:

        abs      Omega_i = mean_n |d ||z_n||_2 / d theta_i|                (reference definition, sources.md#mas)
        squared  Omega_i = mean_n (d mean_k z_nk^2 / d theta_i)^2          (PAR's code, sources.md#mas)

    With ``gradients: minibatch``, as both public codes have it, the gradient is that of a batch's mean; ``squared``
    then has the batch size as a factor.
    """

    capturable = True

    @dataclass(frozen=True)
    class Hyper(PenaltyHyper):
        """PAR's MiniImageNet-20 row: importance squared, gradients minibatch, weight 300 (sources.md#mas)."""

        weight: NonNegative = 1.0  # FACIL's default for abs (sources.md#mas)
        importance: Literal["abs", "squared"] = "abs"
        gradients: Literal["exact", "minibatch"] = "exact"

    def estimate(self, task: LearningTask, step: Step) -> Tensor:
        if self.hyper.gradients == "exact":
            return self.exact_importance(task, step)
        return self.minibatch_importance(task, step)

    def objective(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.hyper.importance == "abs":
            return logits.norm(dim=1).mean()
        return logits.square().mean()

    def strength(self, gradient: Tensor, n_images: int) -> Tensor:
        if self.hyper.importance == "abs":
            return gradient.abs()
        return n_images * gradient.square()
