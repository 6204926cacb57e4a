"""How long steps will take: by what steps alike took, else by the table of throughput.yaml.

Steps are alike that are of one method, network, image size and kind of device. Their number of images is always the
planned one, epochs times training images, so that candidates, replays and early stops are part of an image's seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from par.config import LearnerSettings
from par.files import canonical_json
from par.methods import load_method
from par.schema import Positive, parse, read_yaml, to_plain
from par.steps.chain_job import ChainJob
from par.steps.jobs import Job
from par.steps.routed_chain import RoutedChainJob
from par.steps.search_job import SearchJob
from par.steps.store import Store
from par.streams import load_stream

TABLE = Path(__file__).with_name("throughput.yaml")
SAMPLE = 8  # steps of a kind whose entries are read to measure it
SEARCH = "search"
FALLBACK = "finetune"  # for a method that is not in the table


@dataclass(frozen=True)
class Kind:
    """What steps have in common that take equally long an image.

    ``settings`` are JSON of the network, of the method's hyper-parameters and of the recipe; ``width`` that of the
    networks whose width params.yaml sets, else None. ``stops``: early, by the recipe's patience. ``batch``: images of
    a training step.
    """

    method: str
    settings: str
    width: int | None
    size: int
    device: str
    stops: bool
    batch: int


@dataclass(frozen=True)
class _Method:
    ms: Positive
    stopping_ms: Positive | None = None
    more: float = 0.0
    memory_kb: Positive | None = None


@dataclass(frozen=True)
class _Table:
    image_size: int
    width: int
    step_ms: Positive
    cuda: Positive
    cuda_step_ms: Positive
    memory_kb: Positive
    methods: Mapping[str, Any] = field(default_factory=dict)


def kind_of(settings: LearnerSettings, size: int, device: str, *, search: bool = False) -> Kind:
    """The kind of a learner's steps, or of its searches, on images of ``size`` pixels a side."""
    blocks = ("expert", "search") if search else load_method(settings.method).blocks
    alike = {name: to_plain(getattr(settings, name)) for name in blocks}
    alike |= {} if search else {"hyper": to_plain(settings.hyper), "recipe": to_plain(settings.recipe)}
    width = {"expert": settings.expert.channels, "network": settings.network.width}
    of_network = next((width[name] for name in blocks if name in width), None)
    stops = (
        not search and settings.recipe.patience is not None and 3 * settings.recipe.patience <= settings.recipe.epochs
    )
    name, batch = SEARCH if search else settings.method, settings.recipe.batch_size
    return Kind(name, canonical_json(alike), of_network, size, device, stops, batch)


def kind_of_job(job: Job) -> Kind | None:
    """The kind of a job; None for one that trains nothing of a kind."""
    match job:
        case RoutedChainJob():
            return kind_of_job(job.chain)
        case SearchJob():
            size = max(load_stream(job.directory).tasks[job.task].image_size)
            return kind_of(job.settings, size, job.device.type, search=True)
        case ChainJob():
            tasks = load_stream(job.directory).tasks
            return kind_of(job.settings, max(tasks[job.chain[0].index].image_size), job.device.type)
    return None


def kilobytes_per_pixel(kind: Kind) -> float:
    """Memory that a pixel of each image of a batch takes in training, by the table, which is of the paper's widths."""
    table = _table()
    return (_row(kind.method).memory_kb or table.memory_kb) * (kind.width or table.width) / table.width


class Throughput:
    """Seconds of a training image by kind; ``measured`` are those that were measured here."""

    def __init__(self, measured: Mapping[Kind, float]):
        self._measured = measured

    def basis(self, kind: Kind) -> str:
        """What the seconds of a kind rest on: ``measured``, ``table``, or that the table does not know the method."""
        if kind in self._measured:
            return "measured"
        return "table" if kind.method in _table().methods else f"table of {FALLBACK}"

    def seconds(self, kind: Kind, n_images: int, n_tasks: int = 1) -> float:
        """Seconds of ``n_images`` in a chain of ``n_tasks``."""
        if kind in self._measured:
            return n_images * self._measured[kind]
        table, row, on_card = _table(), _row(kind.method), kind.device == "cuda"
        scale = (kind.size / table.image_size) ** 2 * ((kind.width or table.width) / table.width) ** 2
        scale /= table.cuda if on_card else 1
        ms = scale * (((kind.stops and row.stopping_ms) or row.ms) + row.more * (n_tasks - 1) / 2)
        least = (table.cuda_step_ms if on_card else table.step_ms) / kind.batch
        return n_images * max(ms, least) / 1000


@cache
def _table() -> _Table:
    return parse(_Table, read_yaml(TABLE), TABLE.name)


@cache
def _row(method: str) -> _Method:
    methods = _table().methods
    return parse(_Method, methods.get(method, methods[FALLBACK]), f"{TABLE.name}: {method}")


def measure(jobs: Iterable[Job], store: Store, present: Collection[str]) -> Throughput:
    """What the steps of ``jobs`` that are in the store took, of each kind at most SAMPLE, spread over the jobs.

    Args:
        present: the keys in the store.
    """
    found: dict[Kind, list[tuple[str, int]]] = {}
    for job in jobs:
        kind, steps = kind_of_job(job), _steps(job, store, present)
        if kind is not None and steps:
            found.setdefault(kind, []).extend(steps)
    measured = {}
    for kind, steps in found.items():
        sample = steps[:: max(1, len(steps) // SAMPLE)][:SAMPLE]
        seconds = [(_seconds(store.get(key)), images) for key, images in sample]
        known = [(taken, images) for taken, images in seconds if taken is not None]
        if known:
            measured[kind] = sum(taken for taken, _ in known) / sum(images for _, images in known)
    return Throughput(measured)


def _steps(job: Job, store: Store, present: Collection[str]) -> Sequence[tuple[str, int]]:
    """Keys and images of a job's steps that are in the store and went through images."""
    match job:
        case RoutedChainJob():
            chain = job.resolved(store) if job.search.key in present else None
            return [] if chain is None else _steps(chain, store, present)
        case SearchJob():
            return [(job.key, job.cost())] if job.key in present and job.cost() else []
        case ChainJob():
            epochs, keys = job.settings.recipe.epochs, job.step_keys()
            return [(key, epochs * size) for key, size in zip(keys, job.sizes, strict=True) if key in present]
    return []


def _seconds(entry: Any) -> float | None:
    """The seconds that a step or a search says it took."""
    if entry is None:
        return None
    return entry["info"]["seconds"] if "info" in entry else entry["seconds"]
