"""How many training images the tasks of a stream will have, and of what size, before its data sets are at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from par.schema import parse
from par.streams.definition import Definition, RandomTasks, SourceSettings, read_definition
from par.streams.embedded import EMBEDDED


@dataclass(frozen=True)
class TaskOutline:
    """A task to come: its training images and their pixels a side."""

    n_train: int
    size: int


@dataclass(frozen=True)
class _Published:
    """A data set by its publishers' words: classes, training images a class, pixels a side."""

    classes: int
    images: int
    size: int


PUBLISHED = {
    "cifar10": _Published(10, 5000, 32),
    "cifar100": _Published(100, 500, 32),
    "dtd": _Published(47, 80, 300),
    "fashionmnist": _Published(10, 6000, 28),
    "fceleba": _Published(20, 48, 84),  # two classes a user; on average of the first ten users
    "miniimagenet": _Published(100, 600, 84),
    "mnist": _Published(10, 6000, 28),
    "svhn": _Published(10, 7325, 32),
}


def outline(name: str) -> list[TaskOutline] | None:
    """The tasks of the stream ``name``, without loading or fetching a data set that no package brings; None where the
    definition and the publishers' numbers do not say it.

    Of random tasks it has the expected number of large ones in each phase.

    Raises:
        ConfigError: no such stream, or a definition that cannot be used.
    """
    definition, _ = read_definition(name)
    try:
        return [*_tasks(definition), *(_random(definition, definition.random_tasks) if definition.random_tasks else ())]
    except KeyError:
        return None


def _tasks(definition: Definition) -> Iterator[TaskOutline]:
    for task in definition.tasks:
        n_classes = len(task.classes) if task.classes is not None else task.n_classes
        n_classes = n_classes or _published(definition, task.source).classes
        yield _task(definition, task.source, n_classes, task.train)
    for split in definition.class_splits:
        if split.groups:
            sizes = [len(names) for names in split.groups.values()]
        else:
            of_each = split.classes_per_task or 1
            sizes = [of_each] * (_published(definition, split.source).classes // of_each)
        for n_classes in sizes[: split.n_tasks]:
            yield _task(definition, split.source, n_classes, split.train)


def _task(definition: Definition, alias: str, n_classes: int, train: int | None) -> TaskOutline:
    size = definition.image_size or _published(definition, alias).size
    return TaskOutline(n_classes * (train or _most(definition, alias)), size)


def _random(definition: Definition, tasks: RandomTasks) -> Iterator[TaskOutline]:
    number = 0
    for phase in tasks.phases:
        n_large = round(phase.large * phase.tasks)
        for index in range(phase.tasks):
            alias = tasks.sources[number % len(tasks.sources)]
            train = min(tasks.large.train, _most(definition, alias)) if index < n_large else tasks.small.train
            yield _task(definition, alias, tasks.classes_per_task, train)
            number += 1


def _most(definition: Definition, alias: str) -> int:
    """Training images a class that the validation images leave."""
    settings = parse(SourceSettings, definition.sources.get(alias), alias)
    images = _published(definition, alias).images
    return images - (settings.valid_pool or round(images * (settings.valid_share or 0)))


def _published(definition: Definition, alias: str) -> _Published:
    """The data set behind a name.

    Raises:
        KeyError: nobody says what is in it.
    """
    settings = parse(SourceSettings, definition.sources.get(alias), alias)
    dataset = settings.dataset or alias
    if settings.file is None and dataset in EMBEDDED:
        return _embedded(dataset)
    return PUBLISHED[dataset]


@cache
def _embedded(dataset: str) -> _Published:
    source = EMBEDDED[dataset]()
    images = np.bincount(source.labels["train"]).min()
    return _Published(len(source.classes), int(images), source.images["train"].shape[-1])
