"""Jobs that fill the store, run one after another or in local worker processes, with the same results.

Every job computes with one CPU thread, whatever the number of workers: sums then have one order, and two jobs side by
side measured 1.05-1.14 times the throughput of one job on two threads (`benchmarks.speed workers`, sources.md#cpu).

A worker is a child process with a connection to its parent and nothing else: no pool that breaks with one of them, no
helper process that could be left over. What a killed worker finished is in the store, so its job runs once more in a
fresh one; a job that loses two workers has failed. No worker outlives its parent (:mod:`par.steps.worker`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Protocol

import torch
from tqdm import tqdm

from par.files import in_words
from par.operating_system import keep_large_blocks
from par.schema import ConfigError
from par.steps.store import Store
from par.streams import SourceError
from par.training.trainer import DivergedError

REFRESH_SECONDS = 0.5
ATTEMPTS = 2


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
class Failure:
    """Why a job failed: a sentence, or the traceback of an exception that no user can cause (``is_bug``)."""

    text: str
    is_bug: bool = False


@dataclass(frozen=True)
class Outcome:
    """What :func:`run_jobs` did; ``failures`` are the labels of the failed jobs, in order, and why each failed."""

    steps_computed: int
    steps_reused: int
    failures: list[tuple[str, Failure]]


@dataclass(frozen=True)
class _Result:
    label: str
    steps_computed: int = 0
    steps_reused: int = 0
    failure: Failure | None = None


def run_jobs(jobs: Sequence[Job], store: Store, workers: int, title: str) -> Outcome:
    """Run all jobs, ``workers`` at a time, under a progress bar with an ETA; a failing one does not stop the others.

    To be called in the main thread, which no worker outlives.
    """
    jobs = sorted(jobs, key=lambda job: (-job.cost(), job.label))
    total = sum(job.cost() for job in jobs)
    with tqdm(total=total, desc=title, unit="img", unit_scale=True, mininterval=REFRESH_SECONDS) as bar:
        if workers == 1 or len(jobs) < 2:
            results = _run_here(jobs, store, bar)
        else:
            results = _run_in_processes(jobs, store, min(workers, len(jobs)), bar)
        bar.update(total - bar.n)  # a job that failed
    failures = [(result.label, result.failure) for result in results if result.failure is not None]
    computed, reused = sum(r.steps_computed for r in results), sum(r.steps_reused for r in results)
    return Outcome(computed, reused, sorted(failures, key=lambda failed: failed[0]))


def _run_here(jobs: Sequence[Job], store: Store, bar: tqdm) -> list[_Result]:
    keep_large_blocks()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_attempt(job, store, bar.update) for job in jobs]
    finally:
        torch.set_num_threads(threads)


class _Worker:
    """A worker process with the job that it has; ``seen`` are the images that the job has gone through so far."""

    def __init__(self, store: Store, job: Job, attempt: int):
        self.connection, theirs = Pipe()
        self._store = store
        command = [sys.executable, "-P", "-m", "par.steps.worker", str(os.getpid()), str(theirs.fileno())]
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)  # jobs are found wherever we find them
        with theirs, _interrupts_held_back():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": path},
            )
        self.give(job, attempt)

    def give(self, job: Job, attempt: int) -> None:
        """Hand over a job; a worker that has just died is noticed by whoever waits for its answer."""
        self.job, self.attempt, self.seen = job, attempt, 0
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((self._store, job))

    def death(self) -> str:
        """How the worker ended, when it has hung up."""
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        memory = " (perhaps out of memory: `workers: 1` in params.yaml needs less)" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{memory}"

    def end(self) -> None:
        """Kill the process; what it has finished is in the store."""
        self._process.kill()
        self._process.wait()
        self.connection.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start a process that never gets Ctrl-C, which a terminal sends to all: its parent does and ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_in_processes(jobs: Sequence[Job], store: Store, workers: int, bar: tqdm) -> list[_Result]:
    waiting = deque((job, 1) for job in jobs)
    pool: dict[Any, _Worker] = {}  # by connection
    results: list[_Result] = []
    try:
        while waiting or pool:
            while waiting and len(pool) < workers:
                worker = _Worker(store, *waiting.popleft())
                pool[worker.connection] = worker
            for connection in wait(list(pool)):
                worker = pool[connection]
                try:
                    message = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    del pool[connection]
                    bar.update(-worker.seen)
                    results += _bury(worker, waiting)
                    continue
                if isinstance(message, int):
                    worker.seen += message
                    bar.update(message)
                    continue
                results.append(message)
                if waiting:
                    worker.give(*waiting.popleft())
                else:
                    del pool[connection]
                    worker.end()
    finally:
        for worker in pool.values():
            worker.end()
    return results


def _bury(worker: _Worker, waiting: deque[tuple[Job, int]]) -> list[_Result]:
    """After a worker's death: let its job wait for another, last of all (memory may be short), or fail for good."""
    death, label = worker.death(), worker.job.label
    if worker.attempt < ATTEMPTS:
        tqdm.write(f"The worker of {label} {death}; the job runs once more in a fresh one.", file=sys.stderr)
        waiting.append((worker.job, worker.attempt + 1))
        return []
    return [_Result(label, failure=Failure(f"{ATTEMPTS} workers died of it, the last {death}."))]


def _attempt(job: Job, store: Store, progress: Callable[[int], None]) -> _Result:
    try:
        return _Result(job.label, *job.run(store, progress))
    except Exception as error:
        return _Result(job.label, failure=_explained(error))


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


def serve(connection: Connection) -> None:
    """In a worker: run the jobs that come over the connection until the parent hangs up.

    Every job is answered by its progress, numbers of images, and last a result.
    """
    keep_large_blocks()
    torch.set_num_threads(1)
    while True:
        try:
            store, job = connection.recv()
        except EOFError:
            return
        report = _Report(connection)
        result = _attempt(job, store, report.advance)
        report.send()
        connection.send(result)


class _Report:
    """Progress of a job, sent every REFRESH_SECONDS at most."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._n_images = 0
        self._sent = time.monotonic()

    def advance(self, n_images: int) -> None:
        self._n_images += n_images
        if time.monotonic() - self._sent > REFRESH_SECONDS:
            self.send()

    def send(self) -> None:
        self._connection.send(self._n_images)
        self._n_images, self._sent = 0, time.monotonic()
