"""What is known of a finished run beside its tensors, as JSON; no tensor is read, so torch is not loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from par.files import link_or_copy, read_json, write_json
from par.streams import Stream, Task
from par.use.identifier import Identity


def write_service(
    folder: Path, run: Path, stream: Stream, accuracies: Sequence[float] | None = None, identity: Identity | None = None
) -> None:
    """Write into the empty ``folder`` what :class:`par.use.service.Service` reads of the run in the folder ``run``.

    Args:
        accuracies: see :func:`learner_card`.
        identity: of the stream's tasks; without it every request has to name them.
    """
    write_json(folder / "card.json", run_card(run, stream, accuracies))
    link_or_copy(run / "model.pt", folder / "model.pt")
    if identity is not None:
        identity.write(folder / "tasks.npz")


def run_card(run: Path, stream: Stream, accuracies: Sequence[float] | None = None) -> dict[str, Any]:
    """The card of the run in the folder ``runs/<stream>/<learner>/<seed>``; accuracies: see :func:`learner_card`."""
    learner, steps = read_json(run / "settings.json")["learner"], read_json(run / "steps.json")
    return learner_card(stream, learner, steps["chains"], accuracies) | {"n_params": steps["n_params"]}


def learner_card(
    stream: Stream, learner: Mapping[str, Any], chains: Sequence[Sequence[int]], accuracies: Sequence[float] | None
) -> dict[str, Any]:
    """Stream, settings and tasks of a learner.

    Args:
        learner: its settings as JSON.
        chains: the tasks of every chain.
        accuracies: accuracy on the test images of every task after the last one, where it is known.
    """
    known = [None] * len(stream.tasks) if accuracies is None else accuracies
    chain_of = {task: number for number, chain in enumerate(chains) for task in chain}
    return {
        "stream": {"name": stream.name, "seed": stream.seed, "digest": stream.digest},
        "learner": dict(learner),
        "tasks": [
            {**describe(task), "chain": chain_of[task.index], "accuracy": known[task.index]} for task in stream.tasks
        ],
        "ap": None if accuracies is None else float(np.mean(accuracies)),
    }


def describe(task: Task) -> dict[str, Any]:
    """What a program must know of a task to bring images into its form and to name its classes."""
    return {
        "index": task.index,
        "name": task.name,
        "source": task.source,
        "classes": list(task.class_names),
        "image_size": list(task.image_size),
        "resample": task.resample,
        "squash": task.squash,
        "mean": list(task.mean),
        "std": list(task.std),
        "transform": task.transform,
        "digest": task.digest,
    }


def described_stream(card: Mapping[str, Any]) -> Stream:
    """The stream of a card, whose tasks have no images."""
    tasks = tuple(
        Task(
            index=task["index"],
            name=task["name"],
            source=task["source"],
            class_names=tuple(task["classes"]),
            mean=tuple(task["mean"]),
            std=tuple(task["std"]),
            augment=(),
            transform=task["transform"],
            counts={},
            digest=task["digest"],
            image_size=tuple(task["image_size"]),
            resample=task["resample"],
            squash=task["squash"],
            directory=Path(),
            starts={},
        )
        for task in card["tasks"]
    )
    return Stream(card["stream"]["name"], card["stream"]["seed"], tasks, card["stream"]["digest"])
