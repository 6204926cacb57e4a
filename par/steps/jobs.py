"""What every executor runs: a job, why one can fail, and what became of many."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from par.files import in_words
from par.operating_system import keep_large_blocks
from par.schema import ConfigError
from par.steps.store import Store
from par.streams import SourceError
from par.training.trainer import DivergedError


class Job(Protocol):
    """A piece of work whose results go into the store; a frozen, picklable dataclass."""

    @property
    def label(self) -> str:
        """For people."""

    def cost(self) -> int:
        """Training images it goes through at most: for the progress bar, and to start the longest first."""

    def run(self, store: Store, progress: Callable[[int], None]) -> tuple[int, int]:
        """Do what the store lacks; returns how many steps were computed and how many were there already."""


@dataclass(frozen=True)
class Planned:
    """A job among others.

    Args:
        key: its name: that of the last step that it leaves in the store, so that equal work has equal names.
        after: name of the job whose result it needs. Where that is among the jobs, this one starts after it, and not at
            all if it fails.
        seconds: that it may take, of which the longest first are started; None: by its images.
    """

    key: str
    job: Job
    after: str | None = None
    seconds: float | None = None

    @property
    def weight(self) -> float:
        """To start the longest first."""
        return self.job.cost() if self.seconds is None else self.seconds


@dataclass(frozen=True)
class Failure:
    """Why a job failed: a sentence, or the traceback of an exception that no user can cause (``is_bug``)."""

    text: str
    is_bug: bool = False


@dataclass(frozen=True)
class Result:
    """What became of the job ``label``."""

    label: str
    steps_computed: int = 0
    steps_reused: int = 0
    failure: Failure | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of all jobs; ``failures`` are the labels of the failed ones, in order, and why each failed."""

    steps_computed: int
    steps_reused: int
    failures: list[tuple[str, Failure]]

    @staticmethod
    def of(results: Sequence[Result]) -> Outcome:
        """All results together."""
        failures = [(result.label, result.failure) for result in results if result.failure is not None]
        computed, reused = sum(r.steps_computed for r in results), sum(r.steps_reused for r in results)
        return Outcome(computed, reused, sorted(failures, key=lambda failed: failed[0]))


class Weighed(Protocol):
    """What decides the order of jobs; see :class:`Planned`."""

    @property
    def key(self) -> str: ...

    @property
    def after(self) -> str | None: ...

    @property
    def weight(self) -> float: ...


AnyWeighed = TypeVar("AnyWeighed", bound=Weighed)


def by_weight(jobs: Sequence[AnyWeighed]) -> list[AnyWeighed]:
    """In the order in which they are to be started: the heaviest first, a job that others wait for with the heaviest of
    them on top."""
    behind: dict[str, float] = {}
    for planned in jobs:
        if planned.after is not None:
            behind[planned.after] = max(behind.get(planned.after, 0.0), planned.weight)
    return sorted(jobs, key=lambda planned: (-planned.weight - behind.get(planned.key, 0.0), planned.key))


def attempt(job: Job, store: Store, progress: Callable[[int], None]) -> Result:
    """Run a job, come what may."""
    try:
        return Result(job.label, *job.run(store, progress))
    except Exception as error:
        return Result(job.label, failure=_explained(error))


@contextmanager
def computing_on_one_thread() -> Iterator[None]:
    """The settings of this process and thread that jobs run under, while it lasts.

    Every job computes with one CPU thread, whatever the number of workers: sums then have one order, and two jobs side
    by side measured 1.05-1.14 times the throughput of one job on two threads (`benchmarks.speed workers`,
    sources.md#cpu). Numbers below 1e-38 are zeros: HAT's masks make many of them, which are no news to a sum and cost a
    processor a hundred times as much as others; an AlexNet under HAT trained 1.6 times as fast without them, and two
    tasks of all methods kept their bits.
    """
    n_threads, were_zeros = torch.get_num_threads(), sys.float_info.min / 2 == 0.0  # torch only sets the latter
    keep_large_blocks()
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_flush_denormal(were_zeros)
        torch.set_num_threads(n_threads)


def _explained(error: Exception) -> Failure:
    match error:
        case ConfigError() | SourceError() | DivergedError():
            return Failure(str(error))
        case OSError():
            return Failure(in_words(error))
        case MemoryError() | torch.OutOfMemoryError():
            reason = " ".join(str(error).split())[:200] or "no memory left"
            return Failure(f"{reason}; lower `workers` or recipe.batch_size in params.yaml.")
    return Failure("".join(traceback.format_exception(error)), is_bug=True)


class Paced:
    """Progress of a job, handed on every ``seconds`` at most, as the number of images since the last time."""

    def __init__(self, hand_on: Callable[[int], None], seconds: float):
        self._hand_on, self._seconds = hand_on, seconds
        self._n_images = 0
        self._sent = time.monotonic()

    def advance(self, n_images: int) -> None:
        self._n_images += n_images
        if time.monotonic() - self._sent > self._seconds:
            self.send()

    def send(self) -> None:
        self._hand_on(self._n_images)
        self._n_images, self._sent = 0, time.monotonic()
