"""Jobs that fill the store, run one after another or in local worker processes, with the same results.

Every job computes with one CPU thread, whatever the number of workers: sums then have one order, and two jobs side by
side measured 1.05-1.14 times the throughput of one job on two threads (`benchmarks.speed workers`, sources.md#cpu).
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Protocol

import torch
from tqdm import tqdm

from par.operating_system import die_with_parent, keep_large_blocks
from par.steps.store import Store

REFRESH_SECONDS = 0.5


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
class Outcome:
    """What :func:`run_jobs` did; ``failures`` maps the label of each failed job to its traceback."""

    steps_computed: int
    steps_reused: int
    failures: dict[str, str]


@dataclass(frozen=True)
class _Result:
    label: str
    steps_computed: int = 0
    steps_reused: int = 0
    error: str | None = None


def run_jobs(jobs: Sequence[Job], store: Store, workers: int, title: str) -> Outcome:
    """Run all jobs, ``workers`` at a time, under a progress bar with an ETA; a failing one does not stop the others."""
    jobs = sorted(jobs, key=lambda job: (-job.cost(), job.label))
    total = sum(job.cost() for job in jobs)
    with tqdm(total=total, desc=title, unit="img", unit_scale=True, mininterval=REFRESH_SECONDS) as bar:
        if workers == 1 or len(jobs) < 2:
            results = _run_here(jobs, store, bar)
        else:
            results = _run_in_processes(jobs, store, min(workers, len(jobs)), bar)
        bar.update(total - bar.n)  # a job that failed
    failures = {result.label: result.error for result in results if result.error is not None}
    computed, reused = sum(r.steps_computed for r in results), sum(r.steps_reused for r in results)
    return Outcome(computed, reused, dict(sorted(failures.items())))


def _run_here(jobs: Sequence[Job], store: Store, bar: tqdm) -> list[_Result]:
    keep_large_blocks()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_attempt(job, store, bar.update) for job in jobs]
    finally:
        torch.set_num_threads(threads)


def _run_in_processes(jobs: Sequence[Job], store: Store, workers: int, bar: tqdm) -> list[_Result]:
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    results = []
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(counter,)) as pool:
        labels = {pool.submit(_attempt_in_worker, job, store.folder): job.label for job in jobs}
        waiting = set(labels)
        try:
            while waiting:
                done, waiting = wait(waiting, REFRESH_SECONDS)
                bar.update(counter.value - bar.n)
                for future in done:
                    try:
                        results.append(future.result())
                    except Exception:  # a worker that was killed takes its job with it, not the stage
                        results.append(_Result(labels[future], error=traceback.format_exc()))
        except BaseException:  # Ctrl-C or SIGTERM: leaving the pool would first wait for its jobs to end
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    return results


def _attempt(job: Job, store: Store, progress: Callable[[int], None]) -> _Result:
    try:
        return _Result(job.label, *job.run(store, progress))
    except Exception:
        return _Result(job.label, error=traceback.format_exc())


# A process pool hands shared memory to its workers only at their start; this is where a worker keeps it.
_counter: Synchronized[int] | None = None


def _start_worker(counter: Synchronized[int]) -> None:
    global _counter
    _counter = counter
    die_with_parent()
    keep_large_blocks()
    torch.set_num_threads(1)


def _attempt_in_worker(job: Job, folder: Path) -> _Result:
    def progress(n_images: int) -> None:
        assert _counter is not None
        with _counter.get_lock():
            _counter.value += n_images

    return _attempt(job, Store(folder), progress)
