"""Small settings of the methods that add modules for every task, for their tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from par.config import Config, NetworkSettings, Recipe
from par.methods.bases.method import LearningTask, Method, Step
from tests.methods import tasks

CONFIG = Config(preset="test", streams=(), seeds=(0,), methods={}, network=NetworkSettings(width=8))
RECIPE = Recipe(epochs=10, batch_size=8, learning_rate=0.05, weight_decay=0.001)  # enough to go above chance
QUICK = Recipe(epochs=2, batch_size=8, learning_rate=0.05, weight_decay=0.001)
HYPER: dict[str, dict[str, Any]] = {
    "pnn": {},
    "learn_to_grow": {"search_epochs": 3},
    "mntdp_s": {"path_learning_rate": 0.1},
    "mntdp_d": {},
    "soft_gating": {"channels": 4},
    # a threshold that every batch exceeds, so that each task adds modules in all layers
    "lmc": {"channels": 4, "projection_epochs": 1, "threshold": 0.0},
}


@cache
def task(task_id: int, size: int = 16) -> LearningTask:
    """A task of 24 images a split."""
    return tasks.task(task_id, per_class=8, size=size)


def learner(name: str, config: Config = CONFIG, **hyper: Any) -> Method:
    """A new small learner of a method."""
    return tasks.learner(name, config, **(HYPER[name] | hyper))


def step(task_id: int, recipe: Recipe = QUICK, remember: Callable | None = None) -> Step:
    """Circumstances of learning :func:`task` number ``task_id``."""
    return Step(recipe, f"test/{task_id}", remember=remember) if remember else Step(recipe, f"test/{task_id}")


def grown(name: str, records: list[dict[str, Any]], config: Config = CONFIG, **hyper: Any) -> Method:
    """An untrained learner after tasks 0, 1, ..., whose records are completed with ids and 10 classes."""
    method = learner(name, config, **hyper)
    for task_id, record in enumerate(records):
        method.grow({"task": task_id, "n_classes": 10, "image_size": [32, 32]} | record)
    return method.requires_grad_(False).eval()


def logits(method: Method, task_id: int) -> Tensor:
    """Logits on the validation images of a task."""
    with torch.no_grad():
        return method.logits(task(task_id).valid.batch(torch.arange(24)), task_id)


def accuracy(method: Method, task_id: int) -> float:
    """Accuracy on the validation images of a task."""
    return float((logits(method, task_id).argmax(1) == task(task_id).valid.labels).double().mean())


class Memory:
    """A store in a dictionary; ``computed`` counts what it lacked."""

    def __init__(self):
        self.entries: dict[str, Any] = {}
        self.computed = 0

    def __call__(self, part: str, compute: Callable[[], Any]) -> Any:
        if part not in self.entries:
            self.entries[part] = compute()
            self.computed += 1
        return self.entries[part]
