"""What a stream is made of: the schema of ``definitions/*.yaml`` and the plan of its tasks that a seed draws from it.

Random numbers come from streams named ``("stream", <draws>, <seed>, <purpose>, ...)``, where ``draws`` is the
definition's or else its name:

- ``classes, <source>``: the order of a source's classes, one order for all its tasks;
- ``pool, <source>``: which training images are set aside for validation;
- ``samples, <task>, <split>``: which images of the pools a task gets, without replacement inside a task and
  independently of the other tasks;
- ``background``, ``order``, ``task, <number>``: colours, order of tasks, and the draws of ``random_tasks``;
- ``copies, <task>``: flips and crops of validation images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from par.schema import ConfigError, Count, Fraction, Positive, Range, parse, read_yaml
from par.seeding import numpy_generator
from par.streams.embedded import EMBEDDED
from par.streams.findings import Finding, task_place
from par.streams.sources import Request, Source, SourceError, load_source, zips
from par.streams.transforms import PALETTE, rotate
from par.text import listing, one_line

DEFINITIONS = Path(__file__).with_name("definitions")
SPLITS = ("train", "valid", "test")
MAX_CLASSES = 256  # of a task: predictions are kept as uint8
MAX_LISTED = 5  # places that one message names


@dataclass(frozen=True)
class SourceSettings:
    """How a stream uses a data set. Its key in the definition is the name that tasks use.

    ``file`` names the folder or zip in ``data_dir`` (default: the data set's name); given, it wins over an embedded
    data set of that name. ``class_order``: drawn by the seed or the source's own (alphabetical for folders). Null means
    shuffled, but natural where another source of the stream that is not shuffled has the same class names: label k is
    then one class in both, in the first one's order, as a domain-shift stream wants it.

    Validation images come from the source's own validation split where it brings one. Else ``valid_pool`` training
    images a class are set aside, drawn or the ``last`` ones (default: as many as the largest task asks for); or
    ``valid_share`` of the training images of each task, or of the whole source: of each class (rounded, at least one),
    or of ``all`` together (rounded down), whatever their class.

    ``resize`` allows images of unlike sizes and brings them to the stream's ``image_size``; ``resample`` is the filter
    of every resizing.
    """

    dataset: str | None = None
    file: str | None = None
    class_order: Literal["shuffled", "natural"] | None = None
    valid_pool: Count | None = None
    valid_draw: Literal["random", "last"] = "random"
    valid_share: Fraction | None = None
    valid_share_of: Literal["task", "source"] = "task"
    valid_share_by: Literal["class", "all"] = "class"
    resize: bool = False
    resample: Literal["bilinear", "bicubic"] = "bilinear"


@dataclass(frozen=True)
class TaskSettings:
    """One task. Counts are per class; null means all. ``test`` is an upper limit, ``train`` and ``valid`` are exact.

    Classes: the ones named, or the first ``n_classes`` in the source's order (null: all); 2 to 256. ``background``
    colours grey images: ``first`` and ``second`` are two different colours that the seed draws. ``rotate_labels``:
    label k is the class that had label k-1.
    """

    source: str
    name: str | None = None
    classes: tuple[Any, ...] | None = None
    n_classes: Count | None = None
    train: Count | None = None
    valid: Count | None = None
    test: Count | None = None
    background: Literal["first", "second"] | None = None
    rotate_labels: bool = False


@dataclass(frozen=True)
class ClassSplit:
    """The classes of a source cut into tasks: by ``groups`` (task name: class names) or by ``classes_per_task``.

    ``n_tasks`` keeps only the first tasks. The tasks are named after their group, or ``<source> <number>``. Classes
    that are in no task of the stream, such as the remainder of ``classes_per_task``, are reported.
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
    by ImageNet's statistics, by ``mean`` and ``std`` (fixed), or not at all. ``draws``: the stream whose draws this one
    makes too: tasks that both define alike, at the same place, have the same images, and what is learned of the one
    up to the first task that differs stands for the other. ``orders``: lists of task names, the seed takes one (seed
    modulo their number). ``valid_copies``: validation images as they are, or expanded by four random flips and crops
    each (``four_crops``), or that expansion cut to its first entries (``first_crops``; sources.md#ctrl).
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
    draws: str | None = None
    orders: tuple[tuple[str, ...], ...] = ()
    valid_copies: Literal["originals", "four_crops", "first_crops"] = "originals"

    def aliases(self) -> list[str]:
        """Names of the sources that tasks use, in order of first use."""
        names = [task.source for task in self.tasks]
        names += [split.source for split in self.class_splits]
        names += self.random_tasks.sources if self.random_tasks else ()
        return list(dict.fromkeys(names))

    def generator(self, name: str, seed: int, *purpose: object) -> np.random.Generator:
        """Random numbers of this stream, which is called ``name``, for one of the purposes above."""
        return numpy_generator("stream", self.draws or name, seed, *purpose)


@dataclass(frozen=True)
class PlannedTask:
    """A task whose source, classes and images are drawn: ``rows[split]`` holds for each label rows of the source.

    Rows of ``valid`` are those of the source's training images, or of its own validation images where it has such.
    """

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
    findings: tuple[Finding, ...] = ()


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
        ConfigError: the definition names a source or class that is not there, or makes a task that cannot be learned.
        SourceError: a source cannot be loaded or has too few images.
    """
    return _Planner(name, seed, definition, data_dir).plan()


class _Planner:
    """The draws of one stream and seed."""

    def __init__(self, name: str, seed: int, definition: Definition, data_dir: Path):
        self.name, self.seed, self.definition = name, seed, definition
        where = f"stream {name}.sources"
        aliases = definition.aliases()
        for alias in definition.sources:
            _check_text(alias, where)
            if alias not in aliases:
                raise ConfigError(f"{where}.{alias} is used by no task; the tasks use {', '.join(aliases)}.")
        self.settings = {a: parse(SourceSettings, definition.sources.get(a), f"{where}.{a}") for a in aliases}
        self.sources = {
            alias: self._load(alias, settings, f"{where}.{alias}", data_dir)
            for alias, settings in self.settings.items()
        }
        self.like = self._sources_of_equal_classes()
        self.orders = {alias: self._class_order(alias) for alias in aliases}

    def _load(self, alias: str, settings: SourceSettings, where: str, data_dir: Path) -> Source:
        """The source behind a name, once its settings fit together."""
        if settings.resize and self.definition.image_size is None:
            raise ConfigError(f"{where}.resize = true needs the stream's image_size, which is not set.")
        written = self.definition.sources.get(alias) or {}
        for key in ("valid_share_of", "valid_share_by"):
            if key in written and settings.valid_share is None:
                raise ConfigError(f"{where}.{key} needs valid_share, which is not set.")
        given = [key for key in ("valid_pool", "valid_share") if getattr(settings, key) is not None]
        if len(given) > 1:
            raise ConfigError(f"{where} has both valid_pool and valid_share; give one.")
        dataset = settings.dataset or alias
        if dataset in EMBEDDED and settings.file is None:
            for place in (data_dir / dataset, *zips(dataset, data_dir)):
                if place.exists():
                    raise ConfigError(
                        f"{where}: {place} has the name of an embedded data set, {dataset!r}; rename it and use that "
                        f"name as source, or say {where}.file = {dataset!r} to mean yours."
                    )
        size = self.definition.image_size if settings.resize else None
        file = settings.file or dataset
        source = load_source(Request(dataset, file, data_dir, size, settings.resample, own=settings.file is not None))
        if given and "valid" in source.images:
            raise ConfigError(
                f"{where}.{given[0]} sets training images aside, but {source.name} brings its own validation images; "
                f"remove {given[0]} or the validation images."
            )
        for split, labels in source.labels.items():
            if strange := int(((labels < 0) | (labels >= len(source.classes))).sum()):
                n_classes = len(source.classes)
                raise SourceError(
                    f"{source.name}: {strange} of {len(labels)} {split} labels are not among its {n_classes} classes; "
                    "fetch or copy it again."
                )
        return source

    def _generator(self, *purpose: object) -> np.random.Generator:
        return self.definition.generator(self.name, self.seed, *purpose)

    def _sources_of_equal_classes(self) -> dict[str, str]:
        """For each source that leaves its class order open and has the class names of another: whose order it takes."""
        ordered = [task.source for task in self.definition.tasks if task.classes is None]
        ordered += [split.source for split in self.definition.class_splits if not split.groups]
        ordered = [alias for alias in dict.fromkeys(ordered) if self.settings[alias].class_order != "shuffled"]
        like = {}
        for alias in ordered:
            names = set(self.sources[alias].classes)
            equal = [other for other in ordered if set(self.sources[other].classes) == names]
            if len(equal) > 1 and self.settings[alias].class_order is None:
                like[alias] = next((other for other in equal if self.settings[other].class_order), equal[0])
        return like

    def _class_order(self, alias: str) -> tuple[int, ...]:
        source = self.sources[alias]
        if alias in self.like:
            return tuple(source.classes.index(name) for name in self.sources[self.like[alias]].classes)
        if self.settings[alias].class_order == "natural":
            return tuple(range(len(source.classes)))
        return tuple(self._generator("classes", alias).permutation(len(source.classes)).tolist())

    def plan(self) -> Plan:
        drafts = self._ordered([*self._explicit(), *self._class_splits(), *self._random()])
        self._check_classes(drafts)
        by_alias = {alias: self._pools(alias, drafts) for alias in self.sources}
        pools = [
            self._task_pools(index, draft) if (of_source := by_alias[draft.source]) is None else of_source
            for index, draft in enumerate(drafts)
        ]
        self._check_images(drafts, pools)
        tasks = [self._draw(index, draft, of_task) for index, (draft, of_task) in enumerate(zip(drafts, pools))]
        return Plan(self.settings, self.sources, tuple(tasks), tuple(self._findings(drafts)))

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
        names = [_class_name(name, source, where) for name in names]
        if len(set(names)) != len(names):
            raise ConfigError(f"{where}: a class is named twice in {listing(names, 10)}; name each once.")
        return tuple(source.classes.index(name) for name in names)

    def _class_splits(self) -> list[_Draft]:
        drafts = []
        for position, split in enumerate(self.definition.class_splits):
            where = f"stream {self.name}.class_splits[{position}]"
            if bool(split.groups) == bool(split.classes_per_task):
                raise ConfigError(f"{where}: give either groups or classes_per_task.")
            order = self.orders[split.source]
            if split.groups:
                parts = {g: self._group(split.source, g, names, where) for g, names in split.groups.items()}
            else:
                size = split.classes_per_task
                assert size is not None
                starts = range(0, len(order) - size + 1, size)
                parts = {f"{split.source} {n}": order[s : s + size] for n, s in enumerate(starts)}
            if not parts:
                raise ConfigError(
                    f"{where}.classes_per_task = {split.classes_per_task} but {self.sources[split.source].name} has "
                    f"{len(order)} classes."
                )
            if (split.n_tasks or 1) > len(parts):
                raise ConfigError(f"{where}.n_tasks = {split.n_tasks} but its classes make {len(parts)} tasks.")
            counts = {"train": split.train, "valid": split.valid, "test": split.test}
            drafts += [_Draft(name, split.source, part, counts) for name, part in list(parts.items())[: split.n_tasks]]
        return drafts

    def _group(self, alias: str, name: Any, classes: object, where: str) -> tuple[int, ...]:
        """The labels of one entry of ``groups``."""
        _check_text(name, f"{where}.groups")
        where = f"{where}.groups.{one_line(name)}"
        if not isinstance(classes, list):
            raise ConfigError(f"{where} = {classes!r} is not a list; allowed is a list of class names.")
        return self._labels(alias, classes, None, where)

    def _random(self) -> list[_Draft]:
        settings = self.definition.random_tasks
        drafts: list[_Draft] = []
        if settings is None:
            return drafts
        if not (settings.sources and settings.phases):
            raise ConfigError(f"stream {self.name}.random_tasks needs at least one source and one phase.")
        for alias in settings.sources:
            if settings.classes_per_task > len(self.sources[alias].classes):
                raise ConfigError(
                    f"stream {self.name}.random_tasks.classes_per_task = {settings.classes_per_task} but "
                    f"{self.sources[alias].name} has {len(self.sources[alias].classes)} classes."
                )
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
                raise ConfigError(
                    f"stream {self.name}.orders: each must list every task once: {listing(list(by_name), 20)}."
                )
            return [by_name[name] for name in order]
        if self.definition.shuffle_tasks:
            return [drafts[position] for position in self._generator("order").permutation(len(drafts))]
        return drafts

    def _check_classes(self, drafts: Sequence[_Draft]) -> None:
        """Every task has classes to tell apart, and not more than a prediction can name."""
        wrong = [
            f"{task_place(index, draft.name)} has {len(draft.labels)}"
            for index, draft in enumerate(drafts)
            if not 2 <= len(draft.labels) <= MAX_CLASSES
        ]
        if wrong:
            raise ConfigError(
                f"stream {self.name}: a task needs 2 to {MAX_CLASSES} classes, but {'; '.join(wrong[:MAX_LISTED])}"
                f"{_further(wrong)}."
            )

    def _findings(self, drafts: Sequence[_Draft]) -> list[Finding]:
        """What the sources left aside and interpreted, which classes no task has, which orders were not drawn."""
        findings = []
        for alias, source in self.sources.items():
            place = f"source {one_line(alias)}"
            for one in source.left_aside:
                what = f"{one.count} file{'s' if one.count != 1 else ''} not read: {one.reason}"
                findings.append(Finding("left aside", place, what, one.count, one.example))
            findings += [Finding("note", place, note, 1) for note in source.notes]
        for alias in dict.fromkeys(split.source for split in self.definition.class_splits):
            classes = self.sources[alias].classes
            used = {label for draft in drafts if draft.source == alias for label in draft.labels}
            if unused := [name for label, name in enumerate(classes) if label not in used]:
                what = f"{len(unused)} of {len(classes)} classes are in no task: {listing(unused, 10)}"
                findings.append(Finding("classes in no task", f"source {one_line(alias)}", what, len(unused)))
        for first in dict.fromkeys(self.like.values()):
            equal = list(dict.fromkeys([first, *(alias for alias, other in self.like.items() if other == first)]))
            what = (
                f"they have the same {len(self.sources[first].classes)} class names and so one natural class order: "
                "label k is the same class in each (class_order: shuffled draws an order for each)"
            )
            findings.append(Finding("class order", f"sources {listing(equal)}", what, len(equal)))
        return findings

    # --- which images ---

    def _pools(self, alias: str, drafts: Sequence[_Draft]) -> dict[int, dict[str, np.ndarray]] | None:
        """For each class its rows by split; None where each task splits its own."""
        settings, source = self.settings[alias], self.sources[alias]
        generator = self._generator("pool", alias)
        labels = range(len(source.classes))
        if "valid" in source.images:
            return {label: {split: source.rows(split, label) for split in SPLITS} for label in labels}
        if settings.valid_share is not None:
            return None if settings.valid_share_of == "task" else _share_out(source, labels, settings, generator)
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
        pools = {}
        for label in labels:
            rows = source.rows("train", label)
            if settings.valid_draw == "random":
                rows = generator.permutation(rows)
            n_train = max(0, len(rows) - size)
            pools[label] = {"train": rows[:n_train], "valid": rows[n_train:], "test": source.rows("test", label)}
        return pools

    def _task_pools(self, index: int, draft: _Draft) -> dict[int, dict[str, np.ndarray]]:
        """Such pools of one task that splits its own images."""
        generator = self._generator("pool", draft.source, index)
        return _share_out(self.sources[draft.source], draft.labels, self.settings[draft.source], generator)

    def _check_images(self, drafts: Sequence[_Draft], pools: Sequence[Mapping[int, Mapping[str, np.ndarray]]]) -> None:
        """Every class of every task has the images that it needs in every split: at least one."""
        lacks = []
        for index, (draft, of_task) in enumerate(zip(drafts, pools)):
            source = self.sources[draft.source]
            for split, label in product(SPLITS, draft.labels):
                has, count = len(of_task[label][split]), draft.counts[split]
                needs = 1 if count is None or draft.up_to or split == "test" else count
                if has < needs:
                    lacks.append(
                        f"{task_place(index, draft.name)}: class {source.classes[label]!r} of {source.name} has {has} "
                        f"{split} images, the task needs {needs}"
                    )
        if lacks:
            unread = [
                f"{one.count} files of {source.name} were left aside ({one.reason}, such as {one_line(one.example)})"
                for source in self.sources.values()
                for one in source.left_aside
            ]
            raise SourceError(
                f"stream {self.name}: {'; '.join(lacks[:MAX_LISTED])}{_further(lacks)}; "
                f"{''.join(f'{words}; ' for words in unread)}lower the tasks' counts or the source's valid_pool or "
                "valid_share, or get the complete data set."
            )

    def _draw(self, index: int, draft: _Draft, pools: Mapping[int, Mapping[str, np.ndarray]]) -> PlannedTask:
        rows: dict[str, list[np.ndarray]] = {}
        for split, count in draft.counts.items():
            generator = self._generator("samples", index, split)
            rows[split] = []
            for label in draft.labels:
                pool = pools[label][split]
                if count is None or (count > len(pool) and (draft.up_to or split == "test")):
                    rows[split].append(np.sort(pool))
                else:
                    rows[split].append(np.sort(generator.choice(pool, count, replace=False)))
        return PlannedTask(draft.name, draft.source, draft.labels, draft.background, draft.rotated, rows)


def _further(items: Sequence[str]) -> str:
    """How many items a message does not list."""
    return f"; and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""


def _check_text(name: object, where: str) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"{where}: the name {name} is no text to YAML; put it in quotes.")


def _class_name(name: object, source: Source, where: str) -> str:
    """A class that a definition names; a whole number may stand for the class of that number.

    Raises:
        ConfigError: there is no such class, or YAML has made something else than a text of its name.
    """
    if isinstance(name, str) and name in source.classes:
        return name
    if type(name) is int:
        numbered = [one for one in source.classes if one.isdecimal() and int(one) == name]
        if numbered == [str(name)]:
            return numbered[0]
    known = listing(source.classes, 10)
    if isinstance(name, str):
        raise ConfigError(f"{where}: class {name!r} is not in {source.name}; its classes are {known}.")
    raise ConfigError(
        f"{where}: {name} is no text to YAML and no class of {source.name}, whose classes are {known}; put the class's "
        "name in quotes."
    )


def _share_out(
    source: Source, labels: Sequence[int], settings: SourceSettings, generator: np.random.Generator
) -> dict[int, dict[str, np.ndarray]]:
    """A random share of the training images of ``labels`` is for validation; pools by class."""
    share, of_class = settings.valid_share, source.labels["train"]
    assert share is not None
    if settings.valid_share_by == "all":
        rows = generator.permutation(np.concatenate([source.rows("train", label) for label in labels]))
        n_valid = int(share * len(rows))
        parts = {"train": np.sort(rows[n_valid:]), "valid": np.sort(rows[:n_valid])}
        pools = {label: {split: part[of_class[part] == label] for split, part in parts.items()} for label in labels}
    else:
        pools = {}
        for label in labels:
            rows = generator.permutation(source.rows("train", label))
            n_valid = max(1, round(share * len(rows))) if share else 0
            pools[label] = {"train": rows[n_valid:], "valid": rows[:n_valid]}
    return {label: {**pool, "test": source.rows("test", label)} for label, pool in pools.items()}
