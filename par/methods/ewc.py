"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017, sources.md#ewc)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from par.methods.bases.method import LearningTask, Step
from par.methods.bases.penalty import PenaltyHyper, QuadraticPenalty
from par.schema import NonNegative
from par.training.losses import cross_entropy


class Ewc(QuadraticPenalty):
    """A quadratic penalty (:class:`QuadraticPenalty`) with the diagonal of the empirical Fisher information:

        exact      F_i = mean_n (d ln p(y_n | x_n) / d theta_i)^2
        minibatch  F_i = mean_b B (d mean_{n in b} ln p(y_n | x_n) / d theta_i)^2      (PAR's code, sources.md#ewc)

    ``minibatch`` estimates ``exact`` up to B times the squared mean gradient, which is small at a solution; the factor
    B puts both on one scale, so that a ``weight`` means the same for either. That is why the exact one is the default
    and takes PAR's weight. ``labels: predicted`` is MNTDP's and FACIL's choice (sources.md#ewc).
    """

    capturable = True

    @dataclass(frozen=True)
    class Hyper(PenaltyHyper):
        """MNTDP: merge sum (S_long: online), labels predicted, weight in {1, 5, 10, 50, ... 10000} (sources.md#ewc)."""

        weight: NonNegative = 3000.0  # PAR's for MiniImageNet-20 (sources.md#par-recipe); none for CIFAR is public
        fisher: Literal["exact", "minibatch"] = "exact"
        labels: Literal["true", "predicted"] = "true"  # PAR's code

    def estimate(self, task: LearningTask, step: Step) -> Tensor:
        if self.hyper.fisher == "exact":
            return self.exact_importance(task, step)
        return self.minibatch_importance(task, step)

    def objective(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels if self.hyper.labels == "true" else logits.argmax(dim=1))

    def strength(self, gradient: Tensor, n_images: int) -> Tensor:
        return n_images * gradient.square()
