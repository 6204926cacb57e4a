"""What every method is: a learner of a chain of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from par import seeding
from par.config import LearnerSettings, Recipe
from par.networks import build_network
from par.networks.heads import Heads
from par.training import trainer
from par.training.images import Images
from par.training.losses import cross_entropy


@dataclass(frozen=True)
class NoHyper:
    """Hyper-parameters of a method that has none."""


@dataclass(frozen=True)
class LearningTask:
    """One task as a learner sees it: no test data, and what the plan says of it.

    ``genotype`` is the cell of a new expert (JSON of ``par.cells.genotype``); ``head_only`` freezes the expert.
    Both are set for methods that follow a routed plan.
    """

    id: int
    n_classes: int
    train: Images
    valid: Images
    genotype: Mapping[str, Any] | None = None
    head_only: bool = False


def no_checkpoint(part: str) -> None:
    """The way to the checkpoint of a fit for a learner without a store."""


def compute_anew(part: str, compute: Callable[[], Any]) -> Any:
    """The way to a part of a step for a learner without a store."""
    return compute()


@dataclass(frozen=True)
class Step:
    """Circumstances of learning one task: recipe, name of the random streams, the ways to the training loop and store.

    A step that was killed is learned again from its start; what keeps that short:

    - ``remember(part, compute)`` returns ``compute()``, plain data and tensors on the CPU, and keeps it in the store.
      A method that fits more than once in a step gets from it what every fit but the last one leaves.
    - ``checkpoint(part)`` is where the fit of that part saves itself; :meth:`fit` hands it to the training loop. A
      method whose fits change more than ``modules_to_train`` defines :meth:`par.training.trainer.Trainable.step_state`.
    """

    recipe: Recipe
    key: str
    progress: Callable[[int], None] | None = None
    remember: Callable[[str, Callable[[], Any]], Any] = compute_anew
    checkpoint: Callable[[str], trainer.Checkpoint | None] = no_checkpoint

    def fit(
        self,
        model: trainer.Trainable,
        task: LearningTask,
        purpose: str = "train",
        recipe: Recipe | None = None,
        part: str | None = None,
    ) -> list[dict[str, float]]:
        """Train ``model`` on the task by the step's recipe or another.

        ``purpose`` tells several fits of a step apart and names their random streams; ``part`` tells apart those of one
        purpose, which draw alike.
        """
        return trainer.fit(
            model,
            task.train,
            task.valid,
            recipe or self.recipe,
            f"{self.key}/{purpose}",
            progress=self.progress,
            checkpoint=self.checkpoint(part or purpose),
        )


class Method(trainer.Trainable):
    """A learner of one chain of tasks.

    A subclass sets ``self.heads`` and defines how a task begins, what is trained, the loss, and what remains of a task.
    Its whole state between tasks is :meth:`save`'s: a learner that is rebuilt from it goes on bit for bit.
    """

    #: How a stream is divided: one chain over the stream, one chain a task, or the groups of the routed plan.
    chains: ClassVar[Literal["stream", "task", "plan"]] = "stream"
    #: Blocks of its settings that shape the learner besides its recipe and its hyper-parameters.
    blocks: ClassVar[tuple[str, ...]] = ("network",)
    #: Schema of ``methods.<name>`` in params.yaml.
    Hyper: ClassVar[type] = NoHyper

    heads: Heads
    current: LearningTask  # while it is learned

    def __init__(self, settings: LearnerSettings, device: torch.device | str = "cpu"):
        super().__init__()
        self.settings = settings
        self.hyper = settings.hyper
        self.device = torch.device(device)
        self.tasks: list[dict[str, Any]] = []

    @classmethod
    def backbone(cls, hyper: Any) -> str | None:
        """The network, where it is not that of the paper's other rows: AlexNet or MLP.

        A published value is judged only against a run of the same network.
        """
        return None

    def learn(self, task: LearningTask, step: Step) -> list[dict[str, float]]:
        """Learn one more task; returns the rows of the training log."""
        step = replace(step, recipe=self.own_recipe(step.recipe))
        self.current = task
        with seeding.seeded_layers(step.key, "initialisation"):
            self.start_task(task, step)
        log = step.fit(self, task)
        self.end_task(task, step)
        del self.current
        return log

    def own_recipe(self, recipe: Recipe) -> Recipe:
        """The recipe by which the method trains, from the settings' one."""
        return recipe

    def start_task(self, task: LearningTask, step: Step) -> None:
        """Make room for the task: what it needs, freshly initialised, on the right device."""
        self.grow(self.record(task))

    def record(self, task: LearningTask) -> dict[str, Any]:
        """What :meth:`grow` needs to know of a task."""
        return {"task": task.id, "n_classes": task.n_classes, "image_size": list(task.train.size)}

    def grow(self, record: dict[str, Any]) -> None:
        """Add the modules of one task. ``record`` is plain data; :meth:`restore` replays the records in order."""
        self.tasks.append(record)
        self.heads.add(record["task"], record["n_classes"]).to(self.device)

    def loss(self, batch: trainer.Batch) -> Tensor:
        """Cross-entropy on the head of the current task."""
        return cross_entropy(self.predict(batch.images), batch.labels)

    def predict(self, images: Tensor) -> Tensor:
        """Logits on the current task."""
        return self.logits(images, self.current.id)

    def end_task(self, task: LearningTask, step: Step) -> None:
        """Keep what later tasks need of this one. Leaves every buffer of the networks as it is."""

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        """Images [n, 3, H, W] -> logits [n, K] of a learned task, in eval mode."""
        raise NotImplementedError

    def n_params(self) -> int:
        """Parameters needed to predict on all tasks learned so far, heads included (the paper's M times 10^6)."""
        return sum(parameter.numel() for parameter in self.parameters())

    def n_state(self) -> int:
        """Numbers kept between tasks that are no parameters of the networks (images, importances, bases, masks)."""
        return 0

    def save(self) -> dict[str, Any]:
        """The state between tasks as plain data and tensors on the CPU, readable with ``weights_only=True``."""
        tensors = {name: value.detach().cpu().clone() for name, value in self.state_dict().items()}
        return {"tasks": [dict(record) for record in self.tasks], "tensors": tensors}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Become the learner that was saved."""
        for record in saved["tasks"]:
            self.grow(dict(record))
        self.load_state_dict(saved["tensors"])
        self.requires_grad_(False)
        self.eval()


class SharedTrunk(Method):
    """One network for all tasks of the chain, one head a task; old heads are not trained (sources.md#par-recipe)."""

    trunk: nn.Module  # from the first task on

    def grow(self, record: dict[str, Any]) -> None:
        if not self.tasks:
            self.trunk = self.build_trunk(record).to(self.device)
            n_features = self.trunk.n_features
            assert isinstance(n_features, int)
            self.heads = Heads(n_features)
        super().grow(record)

    def build_trunk(self, record: Mapping[str, Any]) -> nn.Module:
        """A fresh trunk for a chain that begins with the task of ``record``."""
        return build_network(self.settings.network)

    def modules_to_train(self) -> list[nn.Module]:
        return [self.trunk, self.heads[self.current.id]]

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        return self.heads(self.trunk(images), task_id)
