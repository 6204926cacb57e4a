"""From a plan to finished steps in the store, and from the store to the files of a run.

A *chain* is a sequence of tasks learned one after another by one learner; chains are independent. Learning one task is
a *step*, a pure function of the state before it, the task, the settings and the seed; its key in the store is the hash
of all of these. Predictions on test images are entries of their own, so that asking for more of them trains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from par.config import CHECKPOINT_MINUTES, LearnerSettings, Predict
from par.methods import load_method
from par.methods.bases.method import LearningTask, Method, Step
from par.numerics import Numerics
from par.schema import to_plain
from par.steps.checkpoint import RunningStep, forget
from par.steps.code_digest import PLUMBING, code_digest
from par.steps.store import Store, entry_key
from par.streams import Task, load_stream
from par.training import trainer
from par.training.images import Images
from par.training.precision import Precision, policy
from par.training.step import capturing, cuda_graphs

LONG_CHAIN = 20  # tasks; the predictions of all steps grow with the square of a chain's length


@dataclass(frozen=True)
class ChainTask:
    """A task of a chain and what the plan says of it."""

    index: int
    genotype: Mapping[str, Any] | None = None
    head_only: bool = False


def plan_chains(method: str, n_tasks: int, routed: Sequence[Sequence[ChainTask]] = ()) -> list[list[ChainTask]]:
    """How ``method`` divides a stream of ``n_tasks``; ``routed`` are the plan's groups, for methods that follow it."""
    division = load_method(method).chains
    if division == "plan":
        return [list(group) for group in routed]
    if division == "task":
        return [[ChainTask(index)] for index in range(n_tasks)]
    return [[ChainTask(index) for index in range(n_tasks)]]


@dataclass(frozen=True)
class ChainJob:
    """One chain of one learner and seed (a :class:`par.steps.jobs.Job`).

    Args:
        directory: the built stream of ``seed``.
        sizes: training images of every task of the chain.
        predict: after which steps test images are predicted, as in params.yaml.
        checkpoint_minutes: between two saves of a step in progress, as in params.yaml.
        capture: as in params.yaml (True: ``auto``). No part of a step's key: captured or not, the same kernels run.
    """

    settings: LearnerSettings
    directory: Path
    seed: int
    chain: tuple[ChainTask, ...]
    sizes: tuple[int, ...]
    predict: Predict
    device: torch.device
    checkpoint_minutes: float = CHECKPOINT_MINUTES
    precision: Precision = "float32"
    numerics: Numerics = "native"
    capture: bool = True

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.settings.learner} seed {self.seed} chain of {len(self.chain)} from task {self.chain[0].index}"

    def cost(self) -> int:
        """See :class:`par.steps.jobs.Job`; candidates that a method trains on the way are not counted."""
        return self.settings.recipe.epochs * sum(self.sizes)

    def run(self, store: Store, progress: Callable[[int], None]) -> tuple[int, int]:
        """See :class:`par.steps.jobs.Job`."""
        with policy(self.device, self.precision), capturing(cuda_graphs(self.device, self.capture)):
            return self._run(store, progress)

    def _run(self, store: Store, progress: Callable[[int], None]) -> tuple[int, int]:
        stream = load_stream(self.directory)
        learner: Method | None = None  # kept alive while its state is that of the last finished step
        entry, computed = None, 0
        for position, key in enumerate(self.step_keys()):
            planned = self.chain[position]
            task = stream.tasks[planned.index]
            before, entry, is_new = entry, store.get(key), False
            share = _Share(self.settings.recipe.epochs * self.sizes[position], progress)
            if entry is None:
                learner = learner or self.restored(before)
                learn = partial(self._learn, learner, task, planned, key, store, share.advance)
                entry, is_new = store.get_or_compute(key, learn)
            forget(store, key)
            if is_new:
                computed += 1
            else:
                learner = None
            share.finish()
            for index in self.tested_after(position):
                tested = stream.tasks[index]
                missing = prediction_key(key, tested)
                if store.get(missing) is None:
                    learner = learner or self.restored(entry)
                    store.get_or_compute(missing, partial(self._predict, learner, tested))
        return computed, len(self.chain) - computed

    def step_keys(self) -> list[str]:
        """Store keys of the chain's steps."""
        stream, settings = load_stream(self.directory), self.settings
        method = load_method(settings.method)
        code = code_digest([__name__, method.__module__], PLUMBING)
        keys: list[str] = []
        for planned in self.chain:
            content = {
                "method": settings.method,
                "hyper": to_plain(settings.hyper),
                "blocks": {name: to_plain(getattr(settings, name)) for name in method.blocks},
                "recipe": to_plain(settings.recipe),
                "parent": keys[-1] if keys else None,
                "task": stream.tasks[planned.index].digest,
                "index": planned.index,
                "genotype": planned.genotype,
                "head_only": planned.head_only,
                "seed": self.seed,
                "device": self.device.type,
                "precision": self.precision,
                "numerics": self.numerics,
                "torch": torch.__version__,
                "code": code,
            }
            keys.append(entry_key(content))
        return keys

    def restored(self, entry: Mapping[str, Any] | None) -> Method:
        """The learner as it was after the step of ``entry``, or a new one."""
        learner = load_method(self.settings.method)(self.settings, self.device)
        if entry is not None:
            learner.restore(entry["state"])
        return learner

    def _learn(
        self,
        learner: Method,
        task: Task,
        planned: ChainTask,
        key: str,
        store: Store,
        progress: Callable[[int], None],
    ) -> dict[str, Any]:
        def remember(part: str, compute: Callable[[], Any]) -> Any:
            return store.get_or_compute(entry_key({"step": key, "part": part}), compute)[0]

        running = RunningStep(store, key, self.checkpoint_minutes, progress)
        train, valid = (self._images(task, split) for split in ("train", "valid"))
        learning_task = LearningTask(planned.index, task.n_classes, train, valid, planned.genotype, planned.head_only)
        # Streams are named by what is learned, not by the step's key: methods and settings that are compared share
        # their draws, and a refactoring leaves every number as it was.
        names = f"{self.seed}/{task.digest}"
        step = Step(self.settings.recipe, names, running.advance, remember, running.part)
        log = learner.learn(learning_task, step)
        info = {
            "task": planned.index,
            "seconds": running.seconds(),
            "epochs": len(log),
            "n_params": learner.n_params(),
            "n_state": learner.n_state(),
            "valid_accuracy": max((row["valid_accuracy"] for row in log), default=0.0),
        }
        return {"state": learner.save(), "log": log, "info": info}

    def tested_after(self, position: int) -> list[int]:
        """Tasks whose test images are predicted after the step at ``position``."""
        full = self.predict == "full" or (self.predict == "auto" and len(self.chain) <= LONG_CHAIN)
        if full or position == len(self.chain) - 1:
            return [planned.index for planned in self.chain[: position + 1]]
        return [self.chain[position].index]

    def _predict(self, learner: Method, task: Task) -> torch.Tensor:
        images = self._images(task, "test")
        return trainer.predict_classes(lambda batch: learner.logits(batch, task.index), images).to(torch.uint8)

    def _images(self, task: Task, split: str) -> Images:
        part = task.split(split)
        augment = task.augment if split == "train" else ()
        return Images(part.images, part.labels, task.mean, task.std, augment, self.device)


def prediction_key(step_key: str, task: Task) -> str:
    """Store key of the predictions on ``task``'s test images after a step."""
    return entry_key({"step": step_key, "test": task.digest, "index": task.index})


class _Share:
    """A step's part of the progress bar: the planned images, whether candidates need more or early stops fewer."""

    def __init__(self, n_images: int, progress: Callable[[int], None]):
        self._left = n_images
        self._progress = progress

    def advance(self, n_images: int) -> None:
        shown = min(n_images, self._left)
        self._left -= shown
        self._progress(shown)

    def finish(self) -> None:
        self.advance(self._left)


@dataclass(frozen=True)
class Learned:
    """Everything a learner leaves for one stream and seed, assembled from its chains.

    predictions: ``"i/j"`` -> uint8 [n_test_j]: class of every test image of task j after step i, only where step i
    could change it. log: one row per task and epoch. steps: one row per task in the order of the stream; ``n_params``
    and ``n_state`` are those of the whole learner after the step. models: saved learner per chain.
    """

    predictions: dict[str, np.ndarray]
    log: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    models: list[dict[str, Any]]


def assemble(jobs: Sequence[ChainJob], store: Store) -> Learned:
    """Collect a learner's finished chains (all of one stream and seed) from the store.

    Raises:
        KeyError: a step or prediction is not in the store.
    """
    predictions, log, infos, models, chain_of = {}, [], {}, [], {}
    for number, job in enumerate(jobs):
        stream = load_stream(job.directory)
        for position, (key, planned) in enumerate(zip(job.step_keys(), job.chain, strict=True)):
            entry = store.existing(key)
            chain_of[planned.index] = number
            infos[planned.index] = entry["info"]
            log += [{"task": planned.index, **row} for row in entry["log"]]
            for index in job.tested_after(position):
                found = store.existing(prediction_key(key, stream.tasks[index]))
                predictions[f"{planned.index}/{index}"] = found.numpy()
        models.append({"tasks": [planned.index for planned in job.chain], "state": entry["state"]})
    steps, latest = [], {}
    for index in sorted(infos):
        latest[chain_of[index]] = infos[index]
        totals = {name: sum(info[name] for info in latest.values()) for name in ("n_params", "n_state")}
        steps.append({**infos[index], **totals, "chain": chain_of[index]})
    log.sort(key=lambda row: (row["task"], row["epoch"]))
    return Learned(predictions, log, steps, models)
