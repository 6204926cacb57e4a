"""What a stream is made of: the schema of ``definitions/*.yaml`` and the plan of its tasks that a seed draws from it.

Random numbers come from streams named ``("stream", <name>, <seed>, <purpose>, ...)``:

- ``classes, <source>``: the order of a source's classes, one order for all its tasks;
- ``pool, <source>``: which training images are set aside for validation;
- ``samples, <task>, <split>``: which images of the pools a task gets, without replacement inside a task and
  independently of the other tasks;
- ``background``, ``order``, ``task, <number>``: colours, order of tasks, and the draws of ``random_tasks``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from par.schema import ConfigError, Count, Fraction, Positive, Range, parse, read_yaml
from par.seeding import numpy_generator
from par.streams.sources import Request, Source, SourceError, load_source
from par.streams.transforms import PALETTE, rotate

DEFINITIONS = Path(__file__).with_name("definitions")


@dataclass(frozen=True)
class SourceSettings:
    """How a stream uses a data set. Its key in the definition is the name that tasks use.

    ``file`` names the folder or zip in ``data_dir`` (default: the data set's name). ``valid_pool`` images a class are
    set aside for validation, drawn or the ``last`` ones (default: as many as the largest task asks for); or
    ``valid_share`` of all images of each task, or of the whole source, whatever their class. ``resize`` allows images
    of unlike sizes and brings them to the stream's ``image_size``; ``resample`` is the filter of every resizing.
    """

    dataset: str | None = None
    file: str | None = None
    class_order: Literal["shuffled", "natural"] = "shuffled"
    valid_pool: Count | None = None
    valid_draw: Literal["random", "last"] = "random"
    valid_share: Fraction | None = None
    valid_share_of: Literal["task", "source"] = "task"
    resize: bool = False
    resample: Literal["bilinear", "bicubic"] = "bilinear"


@dataclass(frozen=True)
class TaskSettings:
    """One task. Counts are per class; null means all. ``test`` is an upper limit, ``train`` and ``valid`` are exact.

    Classes: the ones named, or the first ``n_classes`` in the source's order (null: all). ``background`` colours grey
    images: ``first`` and ``second`` are two different colours that the seed draws. ``rotate_labels``: label k is the
    class that had label k-1.
    """

    source: str
    name: str | None = None
    classes: tuple[str, ...] | None = None
    n_classes: Count | None = None
    train: Count | None = None
    valid: Count | None = None
    test: Count | None = None
    background: Literal["first", "second"] | None = None
    rotate_labels: bool = False


@dataclass(frozen=True)
class ClassSplit:
    """The classes of a source cut into tasks: by ``groups`` (task name: class names) or by ``classes_per_task``.

    ``n_tasks`` keeps only the first tasks. The tasks are named after their group, or ``<source> <number>``.
    """

    source: str
    classes_per_task: Count | None = None
    n_tasks: Count | None = None
    groups: Mapping[str, Any] = field(default_factory=dict)
    train: Count | None = None
    valid: Count | None = None
    test: Count | None = None


@dataclass(frozen=True)
class Phase:
    """So many random tasks, each large with probability ``large``, else small."""

    tasks: Count
    large: Fraction


@dataclass(frozen=True)
class Size:
    """Images a class."""

    train: Count
    valid: Count


@dataclass(frozen=True)
class RandomTasks:
    """Tasks of randomly drawn source, classes and size (S_long). ``large`` counts are upper limits, as in CTrL."""

    sources: tuple[str, ...]
    classes_per_task: Count
    phases: tuple[Phase, ...]
    large: Size
    small: Size
    test: Count | None = None


@dataclass(frozen=True)
class Definition:
    """A stream: ``tasks``, then ``class_splits``, then ``random_tasks``, in that order or as the order keys say.

    ``image_size``: all images are brought to this square (null: kept). ``normalise``: by each task's training images,
    by ImageNet's statistics, by ``mean`` and ``std`` (fixed), or not at all. ``orders``: lists of task names, the seed
    takes one (seed modulo their number). ``valid_copies``: validation images as they are, or expanded by four random
    flips and crops each (``four_crops``), or that expansion cut to its first entries (``first_crops``;
    sources.md#ctrl).
    """

    image_size: Annotated[int, Range(8)] | None = None
    normalise: Literal["task", "imagenet", "fixed", "none"] = "task"
    mean: tuple[Fraction, ...] = ()
    std: tuple[Positive, ...] = ()
    augment: tuple[Literal["crop", "flip", "brightness"], ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[TaskSettings, ...] = ()
    class_splits: tuple[ClassSplit, ...] = ()
    random_tasks: RandomTasks | None = None
    shuffle_tasks: bool = False
    orders: tuple[tuple[str, ...], ...] = ()
    valid_copies: Literal["originals", "four_crops", "first_crops"] = "originals"


@dataclass(frozen=True)
class PlannedTask:
    """A task whose source, classes and images are drawn: ``rows[split]`` holds for each label rows of the source."""

    name: str
    source: str
    labels: tuple[int, ...]
    background: str | None
    rotated: bool
    rows: Mapping[str, Sequence[np.ndarray]]


@dataclass(frozen=True)
class Plan:
    """A whole stream before its pixels are copied."""

    settings: Mapping[str, SourceSettings]
    sources: Mapping[str, Source]
    tasks: tuple[PlannedTask, ...]


@dataclass(frozen=True)
class _Draft:
    """A task before its images are drawn; ``up_to``: its training counts are upper limits."""

    name: str
    source: str
    labels: tuple[int, ...]
    counts: Mapping[str, int | None]
    background: str | None = None
    rotated: bool = False
    up_to: bool = False


def known_streams() -> list[str]:
    """Names of the streams that have a file in ``definitions/``, sorted."""
    return sorted(path.stem for path in DEFINITIONS.glob("*.yaml"))


def read_definition(name: str) -> tuple[Definition, dict[str, Any]]:
    """The definition of a stream, typed and as read.

    Raises:
        ConfigError: no such stream, or a value that is not allowed.
    """
    if name not in known_streams():
        raise ConfigError(f"streams: {name!r} is unknown; known are {', '.join(known_streams())}.")
    raw = read_yaml(DEFINITIONS / f"{name}.yaml")
    where = f"stream {name}"
    definition = parse(Definition, raw, where)
    if not (definition.tasks or definition.class_splits or definition.random_tasks):
        raise ConfigError(f"{where} has no tasks; give tasks, class_splits or random_tasks.")
    if definition.normalise == "fixed" and not len(definition.mean) == len(definition.std) == 3:
        raise ConfigError(f"{where}.normalise = 'fixed' needs mean and std with three numbers each (red, green, blue).")
    return definition, raw


def plan_stream(name: str, seed: int, definition: Definition, data_dir: Path) -> Plan:
    """Draw the tasks of a stream and load the sources they need.

    Raises:
        ConfigError: the definition names a source or class that is not there.
        SourceError: a source cannot be loaded or has too few images.
    """
    return _Planner(name, seed, definition, data_dir).plan()


class _Planner:
    """The draws of one stream and seed."""

    def __init__(self, name: str, seed: int, definition: Definition, data_dir: Path):
        self.name, self.seed, self.definition = name, seed, definition
        where = f"stream {name}.sources"
        aliases = self._aliases()
        for alias in definition.sources:
            if alias not in aliases:
                raise ConfigError(f"{where}.{alias} is used by no task; the tasks use {', '.join(aliases)}.")
        self.settings = {a: parse(SourceSettings, definition.sources.get(a), f"{where}.{a}") for a in aliases}
        self.sources = {}
        for alias, settings in self.settings.items():
            if settings.resize and definition.image_size is None:
                raise ConfigError(f"{where}.{alias}.resize = true needs the stream's image_size, which is not set.")
            dataset = settings.dataset or alias
            size = definition.image_size if settings.resize else None
            request = Request(dataset, settings.file or dataset, data_dir, size, settings.resample)
            self.sources[alias] = load_source(request)
        self.orders = {alias: self._class_order(alias) for alias in aliases}

    def _aliases(self) -> list[str]:
        """Names of the sources that tasks use, in order of first use."""
        names = [task.source for task in self.definition.tasks]
        names += [split.source for split in self.definition.class_splits]
        names += self.definition.random_tasks.sources if self.definition.random_tasks else ()
        return list(dict.fromkeys(names))

    def _generator(self, *purpose: object) -> np.random.Generator:
        return numpy_generator("stream", self.name, self.seed, *purpose)

    def _class_order(self, alias: str) -> tuple[int, ...]:
        n_classes = len(self.sources[alias].classes)
        if self.settings[alias].class_order == "natural":
            return tuple(range(n_classes))
        return tuple(self._generator("classes", alias).permutation(n_classes).tolist())

    def plan(self) -> Plan:
        drafts = self._ordered([*self._explicit(), *self._class_splits(), *self._random()])
        pools = {alias: self._pools(alias, drafts) for alias in self.sources}
        tasks = [self._draw(index, draft, pools[draft.source]) for index, draft in enumerate(drafts)]
        return Plan(self.settings, self.sources, tuple(tasks))

    # --- which tasks ---

    def _explicit(self) -> list[_Draft]:
        colours = self._generator("background").permutation(list(PALETTE)).tolist()
        drafts = []
        for position, task in enumerate(self.definition.tasks):
            where = f"stream {self.name}.tasks[{position}]"
            labels = self._labels(task.source, task.classes, task.n_classes, where)
            background = colours[("first", "second").index(task.background)] if task.background else None
            counts = {"train": task.train, "valid": task.valid, "test": task.test}
            name = task.name or task.source
            labels = rotate(labels) if task.rotate_labels else labels
            drafts.append(_Draft(name, task.source, labels, counts, background, task.rotate_labels))
        return drafts

    def _labels(self, alias: str, names: Sequence[str] | None, n_classes: int | None, where: str) -> tuple[int, ...]:
        """Classes by name, or the first ones in the source's order."""
        source = self.sources[alias]
        if names is None:
            if n_classes is not None and n_classes > len(source.classes):
                n_known = len(source.classes)
                raise ConfigError(f"{where}.n_classes = {n_classes} but {source.name} has {n_known} classes.")
            return self.orders[alias][:n_classes]
        for name in names:
            if name not in source.classes:
                known = ", ".join(source.classes[:10]) + (", ..." if len(source.classes) > 10 else "")
                raise ConfigError(f"{where}: class {name!r} is not in {source.name}; its classes are {known}.")
        if len(set(names)) != len(names):
            raise ConfigError(f"{where}: a class is named twice in {', '.join(names)}; name each once.")
        return tuple(source.classes.index(name) for name in names)

    def _class_splits(self) -> list[_Draft]:
        drafts = []
        for position, split in enumerate(self.definition.class_splits):
            where = f"stream {self.name}.class_splits[{position}]"
            if bool(split.groups) == bool(split.classes_per_task):
                raise ConfigError(f"{where}: give either groups or classes_per_task.")
            order = self.orders[split.source]
            if split.groups:
                parts = {g: self._labels(split.source, n, None, f"{where}.groups.{g}") for g, n in split.groups.items()}
            else:
                assert split.classes_per_task is not None
                starts = range(0, len(order) - split.classes_per_task + 1, split.classes_per_task)
                parts = {f"{split.source} {n}": order[s : s + split.classes_per_task] for n, s in enumerate(starts)}
            if (split.n_tasks or 1) > len(parts):
                raise ConfigError(f"{where}.n_tasks = {split.n_tasks} but its classes make {len(parts)} tasks.")
            counts = {"train": split.train, "valid": split.valid, "test": split.test}
            drafts += [_Draft(name, split.source, part, counts) for name, part in list(parts.items())[: split.n_tasks]]
        return drafts

    def _random(self) -> list[_Draft]:
        settings = self.definition.random_tasks
        drafts: list[_Draft] = []
        if settings is None:
            return drafts
        for phase in settings.phases:
            for _ in range(phase.tasks):
                generator = self._generator("task", len(drafts))
                alias = settings.sources[generator.integers(len(settings.sources))]
                n_classes = len(self.sources[alias].classes)
                labels = generator.permutation(n_classes)[: settings.classes_per_task].tolist()
                large = bool(generator.random() < phase.large)
                size = settings.large if large else settings.small
                counts = {"train": size.train, "valid": size.valid, "test": settings.test}
                name = f"{alias} {'large' if large else 'small'}"
                drafts.append(_Draft(name, alias, tuple(labels), counts, up_to=large))
        return drafts

    def _ordered(self, drafts: list[_Draft]) -> list[_Draft]:
        if self.definition.orders:
            order = self.definition.orders[self.seed % len(self.definition.orders)]
            by_name = {draft.name: draft for draft in drafts}
            if sorted(order) != sorted(by_name) or len(by_name) != len(drafts):
                raise ConfigError(f"stream {self.name}.orders: each must list every task once: {', '.join(by_name)}.")
            return [by_name[name] for name in order]
        if self.definition.shuffle_tasks:
            return [drafts[position] for position in self._generator("order").permutation(len(drafts))]
        return drafts

    # --- which images ---

    def _pools(self, alias: str, drafts: Sequence[_Draft]) -> list[dict[str, np.ndarray]] | None:
        """For each class its rows for training and for validation; None where each task splits its own."""
        settings, source = self.settings[alias], self.sources[alias]
        generator = self._generator("pool", alias)
        labels = range(len(source.classes))
        if settings.valid_share is not None:
            if settings.valid_share_of == "task":
                return None
            return _share_out(source, labels, settings.valid_share, generator)
        size = settings.valid_pool
        if size is None:
            wanted = [draft.counts["valid"] for draft in drafts if draft.source == alias]
            known = [count for count in wanted if count is not None]
            if len(known) < len(wanted):
                raise ConfigError(
                    f"stream {self.name}: a task takes all validation images of {alias}; say how many there are with "
                    f"sources.{alias}.valid_pool or valid_share."
                )
            size = max(known, default=0)
        pools = []
        for label in labels:
            rows = source.rows("train", label)
            if settings.valid_draw == "random":
                rows = generator.permutation(rows)
            pools.append({"train": rows[: max(0, len(rows) - size)], "valid": rows[max(0, len(rows) - size) :]})
        return pools

    def _draw(self, index: int, draft: _Draft, pools: list[dict[str, np.ndarray]] | None) -> PlannedTask:
        source = self.sources[draft.source]
        if pools is None:
            share = self.settings[draft.source].valid_share
            assert share is not None
            pools = _share_out(source, draft.labels, share, self._generator("pool", draft.source, index))
        rows: dict[str, list[np.ndarray]] = {}
        for split, count in draft.counts.items():
            generator = self._generator("samples", index, split)
            rows[split] = []
            for label in draft.labels:
                pool = source.rows("test", label) if split == "test" else pools[label][split]
                if count is None or (count > len(pool) and (draft.up_to or split == "test")):
                    rows[split].append(np.sort(pool))
                    continue
                if count > len(pool):
                    raise SourceError(
                        f"stream {self.name}, task {index} ({draft.name}): class {source.classes[label]!r} of "
                        f"{source.name} has {len(pool)} {split} images, the task needs {count}; lower the task's "
                        f"{split} count or the source's valid_pool, or get the complete data set."
                    )
                rows[split].append(np.sort(generator.choice(pool, count, replace=False)))
            if not sum(map(len, rows[split])):
                raise SourceError(f"stream {self.name}, task {index} ({draft.name}) has no {split} images at all.")
        return PlannedTask(draft.name, draft.source, draft.labels, draft.background, draft.rotated, rows)


def _share_out(
    source: Source, labels: Sequence[int], share: float, generator: np.random.Generator
) -> list[dict[str, np.ndarray]]:
    """A random ``share`` (rounded down) of all training images of ``labels`` is for validation; pools by class."""
    rows = generator.permutation(np.concatenate([source.rows("train", label) for label in labels]))
    n_valid = int(share * len(rows))
    parts = {"train": np.sort(rows[n_valid:]), "valid": np.sort(rows[:n_valid])}
    of_class = source.labels["train"]
    n_classes = len(source.classes)
    return [{split: part[of_class[part] == label] for split, part in parts.items()} for label in range(n_classes)]
