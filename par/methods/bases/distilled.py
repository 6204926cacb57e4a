"""What LwF and PAR share: a teacher, which is the learner as it was before the task."""

from __future__ import annotations

import copy

from torch import nn

from par.methods.bases.method import LearningTask, SharedTrunk, Step
from par.networks.heads import Heads


class Distilled(SharedTrunk):
    """A shared trunk whose old outputs regularise the new ones; the teacher lives during a task and is never saved."""

    #: Trunk and heads before the current task, frozen and in eval mode; a tuple, so that they are no submodules.
    teacher: tuple[()] | tuple[nn.Module, Heads] = ()

    def start_task(self, task: LearningTask, step: Step) -> None:
        if self.tasks and self.is_distilled(task):
            trunk, heads = copy.deepcopy(self.trunk), copy.deepcopy(self.heads)
            self.teacher = trunk.requires_grad_(False).eval(), heads.requires_grad_(False).eval()
        super().start_task(task, step)

    def is_distilled(self, task: LearningTask) -> bool:
        """Whether a task that is not the first has a teacher."""
        return True

    def end_task(self, task: LearningTask, step: Step) -> None:
        self.teacher = ()
