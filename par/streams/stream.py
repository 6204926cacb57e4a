"""A built stream: a directory of arrays that needs nothing else, read lazily, one task at a time.

``stream.json`` describes the tasks; ``<split>_images.npy`` (uint8 ``[N, 3, H, W]``), ``<split>_labels.npy`` (int64
``[N]``) and ``<split>_samples.npy`` (int32 ``[N]``, the image's row in its source) hold all tasks one after the other.
Every byte depends on the name, the seed, the definition and the source's images alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from par.files import canonical_json, read_json, sha256_bytes, write_atomically, write_json
from par.streams.definition import SPLITS, Definition, Plan, PlannedTask, plan_stream, read_definition
from par.streams.findings import Finding, task_findings
from par.streams.pixels import Target
from par.streams.sources import SourceError
from par.streams.transforms import colour_background, flip_and_crop, resize

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROPS = 4  # random copies of a validation image in CTrL's S_long (sources.md#ctrl)


@dataclass(frozen=True)
class Split:
    """Images uint8 ``[n, 3, H, W]`` and labels int64 ``[n]``, both read-only memory maps."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Task:
    """One task of a built stream.

    ``mean`` and ``std`` are per channel, of pixels in [0, 1]. ``augment`` is a subset of crop (black padding of
    max(1, size // 8) pixels, random crop), flip and brightness (factor 1 +- 63/255). ``transform`` says in words what
    was done to the source's images and labels. ``digest`` is the SHA-256 of everything that changes learning.
    ``resample`` and ``squash`` say how images of another size become ``image_size`` (:attr:`target`).
    """

    index: int
    name: str
    source: str
    class_names: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    augment: tuple[str, ...]
    transform: str
    counts: Mapping[str, int]
    digest: str
    image_size: tuple[int, int]
    resample: str
    squash: bool
    directory: Path = field(repr=False, compare=False)
    starts: Mapping[str, int] = field(repr=False, compare=False)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def target(self) -> Target:
        """How the task's images were resized; where they are oblong, no rule says how to crop others to their size."""
        height, width = self.image_size
        return Target(height if height == width else None, self.resample, self.squash)

    def split(self, name: str) -> Split:
        """The images and labels of ``train``, ``valid`` or ``test``, mapped into memory but not yet read."""
        return Split(self._part(name, "images"), self._part(name, "labels"))

    def samples(self, name: str) -> np.ndarray:
        """For every image of a split its row in the source (int32 ``[n]``).

        Rows count in the source's split of that name; validation images of a source without one are training images.
        """
        return self._part(name, "samples")

    def _part(self, split: str, kind: str) -> np.ndarray:
        start = self.starts[split]
        return np.load(self.directory / f"{split}_{kind}.npy", mmap_mode="r")[start : start + self.counts[split]]


@dataclass(frozen=True)
class Stream:
    """A built stream. ``digest`` covers its tasks in order; ``findings`` is what its data showed."""

    name: str
    seed: int
    tasks: tuple[Task, ...]
    digest: str
    findings: tuple[Finding, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The findings as sentences."""
        return tuple(map(str, self.findings))


def load_stream(directory: str | Path) -> Stream:
    """The stream in a directory that :func:`build_stream` wrote; no pixel is read.

    Raises:
        SourceError: there is no stream, or one of another version of the code.
    """
    directory = Path(directory)
    try:
        status = (directory / "stream.json").stat()
    except OSError:
        raise SourceError(f"{directory} holds no stream.json; build the stream first (dvc repro).") from None
    return _loaded(directory, Path.cwd(), status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(64)
def _loaded(directory: Path, base: Path, *state_of_the_file: int) -> Stream:
    """The stream, read once for thousands of chains as long as its file is the same; ``base`` is where a relative
    directory lies."""
    content = read_json(directory / "stream.json")
    starts = dict.fromkeys(SPLITS, 0)
    tasks = []
    for index, item in enumerate(content["tasks"]):
        fixed: dict[str, Any] = {
            key: tuple(item.pop(key)) for key in ("class_names", "mean", "std", "augment", "image_size")
        }
        try:
            tasks.append(Task(index=index, directory=directory, starts=dict(starts), **fixed, **item))
        except TypeError:
            raise SourceError(
                f"{directory} was built by another version of the code; build it again (dvc repro)."
            ) from None
        starts = {split: starts[split] + item["counts"][split] for split in SPLITS}
    digest = sha256_bytes(canonical_json([task.digest for task in tasks]).encode())
    findings = tuple(Finding(**item) for item in content["findings"])
    return Stream(content["name"], content["seed"], tuple(tasks), digest, findings)


def build_stream(
    name: str,
    seed: int,
    data_dir: str | Path,
    out: str | Path,
    progress: Callable[[Sequence[PlannedTask]], Iterable[PlannedTask]] = iter,
) -> Stream:
    """Draw the stream ``name`` with ``seed`` and write it to the directory ``out`` (replaced as a whole).

    Args:
        data_dir: where data sets lie that are not embedded.
        progress: wraps the list of tasks while they are written, e.g. ``tqdm``.

    Raises:
        ConfigError: unknown stream, or a definition that cannot be used.
        SourceError: a data set is missing, damaged or too small.
    """
    definition, raw = read_definition(name)
    return build_definition(name, seed, definition, raw, data_dir, out, progress)


def build_definition(
    name: str,
    seed: int,
    definition: Definition,
    raw: Mapping[str, Any],
    data_dir: str | Path,
    out: str | Path,
    progress: Callable[[Sequence[PlannedTask]], Iterable[PlannedTask]] = iter,
) -> Stream:
    """:func:`build_stream` of a definition at hand, which need not be among the files; ``raw`` is it as YAML."""
    plan = plan_stream(name, seed, definition, Path(data_dir))
    size = _image_size(name, definition, plan)

    def write(draft: Path) -> None:
        draft.mkdir()
        records, findings = _write_arrays(draft, name, seed, definition, plan, size, progress)
        sources = {
            alias: {"name": source.name, "digest": source.digest} for alias, source in sorted(plan.sources.items())
        }
        write_json(
            draft / "stream.json",
            {
                "name": name,
                "seed": seed,
                "definition": raw,
                "sources": sources,
                "tasks": records,
                "findings": [asdict(finding) for finding in (*plan.findings, *findings)],
            },
        )

    write_atomically(out, write)
    return load_stream(out)


def _image_size(name: str, definition: Definition, plan: Plan) -> tuple[int, int]:
    if definition.image_size is not None:
        return definition.image_size, definition.image_size
    sizes = {alias: source.images["train"].shape[1:3] for alias, source in plan.sources.items()}
    if len(set(sizes.values())) > 1:
        words = ", ".join(f"{alias} {width}x{height}" for alias, (height, width) in sizes.items())
        raise SourceError(f"stream {name}: its sources have images of unlike sizes ({words}); set image_size.")
    return next(iter(sizes.values()))


def _write_arrays(
    directory: Path,
    name: str,
    seed: int,
    definition: Definition,
    plan: Plan,
    size: tuple[int, int],
    progress: Callable[[Sequence[PlannedTask]], Iterable[PlannedTask]],
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Write the arrays, one task in memory at a time; the tasks' descriptions and what their images show."""
    records: list[dict[str, Any]] = []
    findings: list[Finding] = []
    labels: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    samples: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    factor = CROPS + 1 if definition.valid_copies == "four_crops" else 1
    with ExitStack() as stack:
        files = {}
        for split in SPLITS:
            total = sum(len(rows) for task in plan.tasks for rows in task.rows[split])
            total *= factor if split == "valid" else 1
            files[split] = stack.enter_context(open(directory / f"{split}_images.npy", "wb"))
            _write_header(files[split], (total, 3, *size))
        for index, task in enumerate(progress(plan.tasks)):
            pixels, task_labels = {}, {}
            for split in SPLITS:
                images, rows, marks = _materialise(plan, task, split, definition)
                if split == "valid" and definition.valid_copies != "originals":
                    generator = definition.generator(name, seed, "copies", index)
                    images, rows, marks = _expand(images, rows, marks, definition.valid_copies, generator)
                pixels[split], task_labels[split] = np.ascontiguousarray(images.transpose(0, 3, 1, 2)), marks
                files[split].write(pixels[split].data)
                labels[split].append(marks)
                samples[split].append(rows)
            records.append(_describe(plan, task, definition, size, pixels, task_labels))
            findings += task_findings(index, task.name, records[-1]["class_names"], pixels, task_labels)
    for split in SPLITS:
        np.save(directory / f"{split}_labels.npy", np.concatenate(labels[split]))
        np.save(directory / f"{split}_samples.npy", np.concatenate(samples[split]).astype(np.int32))
    return records, findings


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """The head of a uint8 ``.npy`` file whose rows are written as they come."""
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _materialise(
    plan: Plan, task: PlannedTask, split: str, definition: Definition
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images ``[n, H, W, 3]`` of a split, their rows in the source and their labels, class after class."""
    source = plan.sources[task.source]
    rows = np.concatenate(task.rows[split])
    labels = np.repeat(np.arange(len(task.labels), dtype=np.int64), [len(part) for part in task.rows[split]])
    images = source.images[split if split in source.images else "train"][rows]
    if definition.image_size is not None:
        images = resize(images, definition.image_size, plan.settings[task.source].resample)
    if task.background is not None:
        images = colour_background(images, task.background)
    return images, rows, labels


def _expand(
    images: np.ndarray, rows: np.ndarray, labels: np.ndarray, copies: str, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CTrL's validation set of S_long: four random copies of each image, then the originals (sources.md#ctrl).

    ``first_crops`` cuts it, as PAR's loader does, to the first entries of each class, as many as there are originals:
    those are copies of the first quarter of the images.
    """
    repeated = np.repeat(images, CROPS, axis=0)
    order = np.concatenate([np.repeat(np.arange(len(images)), CROPS), np.arange(len(images))])
    expanded = np.concatenate([flip_and_crop(repeated, generator), images])
    if copies == "first_crops":
        kept = [np.flatnonzero(labels[order] == label)[: np.sum(labels == label)] for label in np.unique(labels)]
        chosen = np.concatenate(kept)
        expanded, order = expanded[chosen], order[chosen]
    return expanded, rows[order], labels[order]


def _describe(
    plan: Plan,
    task: PlannedTask,
    definition: Definition,
    size: tuple[int, int],
    pixels: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """The task as ``stream.json`` holds it."""
    source = plan.sources[task.source]
    mean, std = _statistics(definition, pixels["train"])
    words = [f"{task.background} background"] if task.background else []
    words += ["labels rotated by one"] if task.rotated else []
    learned = {"mean": mean, "std": std, "augment": definition.augment, "n_classes": len(task.labels)}
    digest = hashlib.sha256(canonical_json(learned).encode())
    for split in SPLITS:
        digest.update(canonical_json([split, *pixels[split].shape]).encode())
        digest.update(pixels[split].data)
        digest.update(labels[split].data)
    return {
        "name": task.name,
        "source": source.name,
        "class_names": [source.classes[label] for label in task.labels],
        "mean": mean,
        "std": std,
        "augment": list(definition.augment),
        "transform": ", ".join(words),
        "counts": {split: len(pixels[split]) for split in SPLITS},
        "image_size": list(size),
        "resample": plan.settings[task.source].resample,
        "squash": source.squashed,
        "digest": digest.hexdigest(),
    }


def _statistics(definition: Definition, train: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel that the definition asks for.

    Those of the task are computed from exact histograms, so that they are equal on every machine; a constant channel
    gets the deviation 1 (sources.md#ctrl).
    """
    if definition.normalise == "fixed":
        return list(definition.mean), list(definition.std)
    if definition.normalise == "imagenet":
        return list(IMAGENET_MEAN), list(IMAGENET_STD)
    if definition.normalise == "none":
        return [0.0] * 3, [1.0] * 3
    values = np.arange(256)
    mean, std = [], []
    for channel in range(3):
        histogram = np.bincount(train[:, channel].ravel(), minlength=256)
        n, total, squares = int(histogram.sum()), int(histogram @ values), int(histogram @ values**2)
        mean.append(total / (255 * n))
        std.append((n * squares - total**2) ** 0.5 / (255 * n) or 1.0)
    return mean, std
