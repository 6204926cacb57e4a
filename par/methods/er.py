"""ER: experience replay, as MNTDP runs it for CTrL (Chaudhry et al. 2019, sources.md#er)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from par.methods.bases.memory import Rehearsal, reservoir
from par.methods.bases.method import LearningTask
from par.networks.heads import joint_logits
from par.schema import Count
from par.training import trainer
from par.training.losses import cross_entropy


class Er(Rehearsal):
    """L = mean CE over the current batch and as many images of the memory, each through its task's head (sources.md#er)

    One forward pass on the joined batch, so batch-normalisation statistics are those of both parts. ``ring`` keeps
    ``per_class`` images of every class, ``reservoir`` a uniform sample of all images, of ``per_class`` times the
    classes seen. The memory stays as it is during a task: MNTDP updates it with every batch, but draws only from other
    tasks, so that only its state at the task's end matters; and we keep original pixels where it keeps augmented ones.
    """

    @dataclass(frozen=True)
    class Hyper:
        """MNTDP runs both modes as separate learners."""

        per_class: Count = 15  # MNTDP's stream configurations; its class's default is 10 (sources.md#er)
        mode: Literal["ring", "reservoir"] = "ring"

    capturable = True

    def draw(self, sizes: Sequence[int]) -> Sequence[Mapping[str, Tensor]]:
        return super().draw(sizes) if self.recall is None else [self.recall.draw(size) for size in sizes]

    def loss(self, batch: trainer.Batch) -> Tensor:
        if self.recall is None:
            return super().loss(batch)
        images, labels, positions = self.recall.batch(batch.drawn)
        features = self.trunk(torch.cat([batch.images, images]))
        positions = torch.cat([torch.full_like(batch.labels, len(self.tasks) - 1), positions])
        every = torch.arange(len(positions), device=self.device)
        logits = joint_logits(self.heads, features, self.task_ids)[every, positions]
        return cross_entropy(logits, torch.cat([batch.labels, labels]))

    def fill_memory(self, task: LearningTask, generator: torch.Generator) -> None:
        if self.hyper.mode == "ring":
            return super().fill_memory(task, generator)
        seen = sum(record["n_train"] for record in self.tasks[:-1])
        capacity = len(self.memory.positions)
        staying, rows = reservoir(len(self.memory), seen, len(task.train), capacity, generator)
        self.memory.keep(staying)
        self.memory.store(task.train, rows, len(self.tasks) - 1)
