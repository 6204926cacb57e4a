"""What the methods that add modules for every task and freeze those of earlier tasks have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from par import seeding
from par.config import LearnerSettings, Recipe
from par.methods.bases.method import LearningTask, Method, Step
from par.networks.heads import Heads
from par.training import trainer

Part = TypeVar("Part", bound=nn.Module)


@dataclass(frozen=True)
class Candidate:
    """One way to make room for a task: its name within the step, what it adds to the record, its recipe."""

    name: str
    record: dict[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None


class Modular(Method):
    """A learner whose tasks each own modules (``parts`` and a head).

    Only the current task's are trained. All others are frozen and in eval mode, so that what earlier tasks are
    predicted with never changes by a bit.
    """

    def __init__(self, settings: LearnerSettings, device: torch.device | str = "cpu"):
        super().__init__(settings, device)
        self.parts = nn.ModuleDict()
        self.heads = Heads(self.n_features())

    def n_features(self) -> int:
        """Features that the heads read."""
        return self.settings.network.width

    def build(self, record: dict[str, Any]) -> nn.Module:
        """The modules that the task of ``record`` owns, freshly initialised; earlier tasks are in ``self.tasks``."""
        raise NotImplementedError

    def grow(self, record: dict[str, Any]) -> None:
        self.parts[str(record["task"])] = self.build(record).to(self.device)
        super().grow(record)

    def shrink(self) -> None:
        """Undo the last :meth:`grow`."""
        task = str(self.tasks.pop()["task"])
        del self.parts[task]
        if task in self.heads.by_task:
            del self.heads.by_task[task]

    def own(self, task_id: int) -> nn.ModuleDict:
        """What the task owns, as one module."""
        owned = nn.ModuleDict({"parts": self.parts[str(task_id)]})
        if str(task_id) in self.heads.by_task:
            owned["head"] = self.heads[task_id]
        return owned

    def part(self, task_id: int, kind: type[Part]) -> Part:
        """What :meth:`build` made for the task, a module of ``kind``."""
        part = self.parts[str(task_id)]
        assert isinstance(part, kind)
        return part

    def position(self, task_id: int) -> int:
        """Where the task stands in the order of learning."""
        return next(position for position, record in enumerate(self.tasks) if record["task"] == task_id)

    def modules_to_train(self) -> list[nn.Module]:
        return [self.own(self.current.id)]

    def learn_best(self, task: LearningTask, step: Step, candidates: Iterable[Candidate]) -> list[dict[str, float]]:
        """Train every candidate on the side and keep the one with the best validation accuracy, on a tie the first.

        All start from the same initial weights and see the same batches. Each is a part of the step in the store, also
        one that diverged, so that a learner that is killed trains none of them again. Returns the log of the kept one.

        Raises:
            DivergedError: every candidate diverged; one that does, at the grid's largest rate say, is left out.
        """
        best: dict[str, Any] | None = None
        diverged: trainer.DivergedError | None = None
        for candidate in candidates:
            found = step.remember(candidate.name, partial(self._try, task, step, candidate))
            if "diverged" in found:
                diverged = found["diverged"]
                continue
            if best is None or found["accuracy"] > best["accuracy"]:
                best = found
        if best is None:
            raise trainer.DivergedError(diverged)
        self.grow(best["record"])
        self.own(task.id).load_state_dict(best["tensors"])
        self.requires_grad_(False)
        self.eval()
        return best["log"]

    def _try(self, task: LearningTask, step: Step, candidate: Candidate) -> dict[str, Any]:
        """Learn the task in one way and forget it again; plain data and tensors on the CPU.

        Where the training diverges, only ``diverged``: why.
        """
        record = self.record(task) | candidate.record
        with seeding.seeded_layers(step.key, "initialisation"):
            self.grow(record)
        self.current, owned = task, self.own(task.id)
        try:
            if any(True for _ in owned.parameters()):
                log = step.fit(self, task, recipe=candidate.recipe, part=candidate.name)
            else:  # all modules are those of earlier tasks: nothing to train
                self.eval()
                accuracy = trainer.accuracy(self.predict, task.valid)
                log = [dict(epoch=0, loss=0.0, valid_accuracy=accuracy, learning_rate=0.0, seconds=0.0)]
            tensors = {name: value.detach().cpu().clone() for name, value in owned.state_dict().items()}
        except trainer.DivergedError as error:
            return {"diverged": str(error)}
        finally:
            del self.current
            self.shrink()
        accuracy = max(row["valid_accuracy"] for row in log)
        return {"record": record, "tensors": tensors, "log": log, "accuracy": accuracy}
