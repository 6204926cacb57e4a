"""Tiny tasks, steps and learners for the tests of methods."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import torch

from par.config import Config, ExpertSettings, NetworkSettings, Recipe
from par.methods import load_method
from par.methods.bases.method import LearningTask, Method, Step
from par.settings import resolve
from par.training.images import Images

RECIPE = Recipe(epochs=8, batch_size=8, learning_rate=0.05, weight_decay=0.001)
CONFIG = Config(
    preset="test",
    streams=(),
    seeds=(0,),
    methods={},
    network=NetworkSettings(name="resnet10_light", width=8),
    expert=ExpertSettings(cells=2, channels=4),
)


def images(task_id: int, split: str, n_classes: int = 3, per_class: int = 16, size: int = 16) -> Images:
    """Noise around one random pattern per class; every task has patterns of its own, splits share them."""
    patterns = np.random.default_rng(task_id).integers(0, 256, (n_classes, 3, size, size))
    noise = np.random.default_rng([task_id, split == "train"]).normal(0, 60, (n_classes * per_class, 3, size, size))
    labels = np.arange(n_classes * per_class) % n_classes
    pixels = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
    augment = ("flip",) if split == "train" else ()
    return Images(pixels, labels, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), augment)


def task(task_id: int, **shape: Any) -> LearningTask:
    """A task that a few epochs learn well above chance; ``shape``: see :func:`images`."""
    n_classes = shape.get("n_classes", 3)
    return LearningTask(task_id, n_classes, images(task_id, "train", **shape), images(task_id, "valid", **shape))


def learner(name: str, config: Config = CONFIG, **hyper: Any) -> Method:
    """A new learner of method ``name`` with hyper-parameters that differ from the defaults."""
    return load_method(name)(resolve(dataclasses.replace(config, methods={name: hyper}), "", name))


def step(task_id: int, recipe: Recipe = RECIPE) -> Step:
    """The circumstances in which :func:`task` number ``task_id`` is learned."""
    return Step(recipe, f"test/{task_id}")


def through_a_file(value: Any) -> Any:
    """``value`` as a file gives it back that is read with ``weights_only=True``."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def straight_and_resumed(name: str, recipe: Recipe, **hyper: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a learner of two tasks saves, and what one saves that went through a file after the first of them.

    The global generator stands elsewhere when the second goes on.
    """
    straight = learner(name, **hyper)
    straight.learn(task(0), step(0, recipe))
    saved = through_a_file(straight.save())
    straight.learn(task(1), step(1, recipe))
    resumed = learner(name, **hyper)
    resumed.restore(saved)
    torch.manual_seed(99)
    resumed.learn(task(1), step(1, recipe))
    return straight.save(), resumed.save()
