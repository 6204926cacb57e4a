"""LwF: learning without forgetting (Li and Hoiem 2017, sources.md#lwf)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from par.methods.bases.distilled import Distilled
from par.networks.heads import joint_logits
from par.schema import NonNegative, Positive
from par.training import trainer
from par.training.losses import cross_entropy, distillation


class LwF(Distilled):
    """L = CE(h_t(f(x)), y) + weight * sum_{j<t} KD_T(h_j(f(x)), h_j^old(f^old(x)))        (sources.md#lwf)

    The teacher is the network as it was before the task, in eval mode and on the same augmented batch. The trunk and
    all heads are trained. The new head has no warm-up. Nothing is kept between tasks.
    """

    capturable = True

    @dataclass(frozen=True)
    class Hyper:
        """Other public values: weight 1 (PAR's parser), 2 with T = 1 (HAT), 10 (FACIL), 3 (Mammoth); sources.md#lwf."""

        weight: NonNegative = 2.0  # PAR's script for MiniImageNet-20 (sources.md#par-recipe)
        temperature: Positive = 2.0  # fixed in PAR's code (sources.md#distillation)

    def modules_to_train(self) -> list[nn.Module]:
        return [self.trunk, self.heads]

    def loss(self, batch: trainer.Batch) -> Tensor:
        if not self.teacher:
            return super().loss(batch)
        old_trunk, old_heads = self.teacher
        old_tasks = [record["task"] for record in self.tasks[:-1]]
        features = self.trunk(batch.images)
        student = joint_logits(self.heads, features, old_tasks).flatten(0, 1)
        teacher = joint_logits(old_heads, old_trunk(batch.images), old_tasks).flatten(0, 1)
        # The mean over images and heads, times the number of heads, is the sum over heads of the means over images.
        weight = self.hyper.weight * len(old_tasks)
        new = cross_entropy(self.heads(features, self.current.id), batch.labels)
        return new + weight * distillation(student, teacher, self.hyper.temperature)
