"""Small runs of every method on any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from par.cells.genotype import DARTS_V1
from par.config import Config, ExpertSettings, NetworkSettings, Recipe
from par.methods import METHODS, load_method
from par.methods.bases.method import LearningTask, Method, Step
from par.settings import resolve
from par.training import trainer
from par.training.images import Images

EXPERT = ExpertSettings(cells=2, channels=4)
CONFIG = Config("test", (), (0,), {}, network=NetworkSettings(name="resnet10_light", width=4), expert=EXPERT)
RECIPE = Recipe(epochs=1, batch_size=12, learning_rate=0.05, weight_decay=0.001)
# Settings that make a method small; what is missing keeps its defaults.
HYPER: dict[str, dict[str, Any]] = {
    "cat": {"width": 10, "similarity_epochs": 1},
    "gpm": {"width": 0.05},
    "hat": {"width": 0.05},
    "learn_to_grow": {"search_epochs": 1},
    "lmc": {"channels": 4, "projection_epochs": 1, "threshold": 0.0},
    "soft_gating": {"channels": 4},
    "er": {"per_class": 3},
    "agem": {"per_class": 3},
}


@dataclass(frozen=True)
class Case:
    """A method with hyper-parameters beside :data:`HYPER`, and how many tasks of how large images it learns."""

    method: str
    hyper: dict[str, Any] = field(default_factory=dict)
    tasks: int = 2
    size: int = 16


CASES = {name: Case(name) for name in METHODS} | {
    "cat": Case("cat", tasks=3),  # the attention needs two earlier tasks
    "independent": Case("independent", tasks=1),
}
OTHER_CASES = {  # settings that run other code
    "hat resnet": Case("hat", {"network": "resnet"}),
    "gpm 48 px": Case("gpm", size=48),  # pooled to 2x2
    "ewc minibatch": Case("ewc", {"fisher": "minibatch", "merge": "sum"}),
    "er reservoir": Case("er", {"mode": "reservoir"}, tasks=3),
    "cat features": Case("cat", {"readout": "features"}),
    "mntdp_s fw_bw": Case("mntdp_s", {"connections": "fw_bw"}),
}
ADAM = ("soft_gating", "mntdp_s", "mntdp_d", "lmc")


def images(task_id: int, split: str, device: torch.device, augment: tuple[str, ...], size: int = 16) -> Images:
    """24 images of three classes: noise around one random pattern a class."""
    labels = np.arange(24) % 3
    patterns = np.random.default_rng(task_id).integers(0, 256, (3, 3, size, size))
    noise = np.random.default_rng([task_id, split == "train"]).normal(0, 60, (24, 3, size, size))
    pixels = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
    return Images(pixels, labels, (0.5,) * 3, (0.25,) * 3, augment, device)


def task(task_id: int, device: torch.device, size: int = 16) -> LearningTask:
    """A task with all augmentations."""
    train = images(task_id, "train", device, ("crop", "flip", "brightness"), size)
    valid = images(task_id, "valid", device, (), size)
    return LearningTask(task_id, 3, train, valid, genotype=DARTS_V1.to_json())


def learner(name: str, hyper: dict[str, Any], device: torch.device) -> Method:
    """A new small learner of a method."""
    block = HYPER.get(name, {}) | hyper
    made = load_method(name)(resolve(replace(CONFIG, methods={name: block}), "", name), device)
    if name == "cat":  # whether the read-outs call a task similar is chance; here all are, so that the attention runs
        probed = made.similar_tasks

        def similar(task: LearningTask, step: Step) -> list[int]:
            probed(task, step)
            return [record["task"] for record in made.tasks]

        made.similar_tasks = similar
    return made


class Calls:
    """A recorder (:class:`par.training.step.Recorder`) whose replay is a call of the step."""

    def __init__(self, device: torch.device):
        self.n_recorded = 0

    def warm_up(self, step: Callable[[], None]) -> None:
        step()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        self.n_recorded += 1
        return step


def through(
    case: Case, device: torch.device, base: Recipe = RECIPE, kept: list[Tensor] | None = None
) -> tuple[list[float], list[Tensor]]:
    """Learn, save, restore and predict task after task; the losses and predictions. All saved tensors go to ``kept``.

    Raises:
        AssertionError: something saved is no plain tensor on the CPU.
    """
    recipe = replace(base, optimizer="adam", learning_rate=0.001) if case.method in ADAM else base
    current, losses, predictions = learner(case.method, case.hyper, device), [], []
    for index in range(case.tasks):
        log = current.learn(task(index, device, case.size), Step(recipe, f"test/{index}"))
        losses += [row["loss"] for row in log]
        saved = current.save()
        tensors = [leaf for leaf in tree_leaves(saved) if isinstance(leaf, Tensor)]
        assert all(map(_on_the_cpu, tensors)), "saved tensors are not on the CPU"
        if kept is not None:
            kept += tensors
        current = learner(case.method, case.hyper, device)
        current.restore(saved)
        for earlier in range(index + 1):
            valid = task(earlier, device, case.size).valid
            predicted = trainer.predict_classes(partial(_logits, current, earlier), valid)
            assert _on_the_cpu(predicted), "predictions are not on the CPU"
            predictions.append(predicted)
        assert current.n_params() > 0 and current.n_state() >= 0
    return losses, predictions


def _on_the_cpu(tensor: Tensor) -> bool:
    """Whether it is a plain tensor there."""
    return tensor.is_cpu and type(tensor) is Tensor


def _logits(current: Method, task_id: int, batch: Tensor) -> Tensor:
    return current.logits(batch, task_id)
