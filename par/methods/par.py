"""PAR: related tasks share one expert, regularised by distillation (Wang et al. 2023, sources.md#par)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from par.cells.expert import Expert
from par.cells.genotype import from_json
from par.methods.bases.distilled import Distilled
from par.methods.bases.method import LearningTask
from par.training import trainer
from par.training.losses import cross_entropy, distillation


class Par(Distilled):
    """The learner of one task group; routing (``par.relatedness``) has already made the groups.

    The group's first task trains an expert built from its cell. A later task joins it (paper 3.3, eq. 10):

        L = CE(h_t(E(x)), y) + weight * sum_{j in G} KD_T(h_j(E(x)), h_j^old(E^old(x)))

    with the state before the task as teacher, on the same augmented batch (the paper records the teacher's outputs
    once on the plain images; sources.md#par-code). Old heads are frozen unless ``distillation.train_old_heads``. A task
    that the plan marks ``head_only`` trains nothing but its head, with the expert in eval mode.
    """

    chains = "plan"
    capturable = True
    blocks = ("expert", "distillation")

    def is_distilled(self, task: LearningTask) -> bool:
        return not task.head_only

    def record(self, task: LearningTask) -> dict[str, Any]:
        return super().record(task) | ({} if self.tasks else {"genotype": task.genotype})

    def build_trunk(self, record: Mapping[str, Any]) -> nn.Module:
        shape = self.settings.expert
        return Expert(from_json(record["genotype"]), shape.cells, shape.channels)

    def modules_to_train(self) -> list[nn.Module]:
        head = self.heads[self.current.id]
        if self.current.head_only:
            return [head]
        return [self.trunk, self.heads if self.settings.distillation.train_old_heads else head]

    def loss(self, batch: trainer.Batch) -> Tensor:
        if not self.teacher:
            return super().loss(batch)
        settings, (old_expert, old_heads) = self.settings.distillation, self.teacher
        features, old_features = self.trunk(batch.images), old_expert(batch.images)
        total = cross_entropy(self.heads(features, self.current.id), batch.labels)
        for record in self.tasks[:-1]:
            student, teacher = self.heads(features, record["task"]), old_heads(old_features, record["task"])
            total = total + settings.weight * distillation(student, teacher, settings.temperature)
        return total
