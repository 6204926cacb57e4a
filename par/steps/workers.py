"""Jobs that fill the store, run one after another, in local worker processes or on a cluster, with the same results.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch
from tqdm import tqdm

from par.steps.cluster import Cluster
from par.steps.jobs import Failure, Job, Outcome, Paced, Planned, Result, attempt, by_weight, computing_on_one_thread
from par.steps.slots import Slot, Slots, Workers, physical_cores
from par.steps.store import Store

REFRESH_SECONDS = 0.5
SLOT_SECONDS = 1.0  # between two looks for a free slot
ATTEMPTS = 2


def run_jobs(
    jobs: Sequence[Job | Planned],
    store: Store,
    workers: Workers | int,
    title: str,
    cluster: Cluster | None = None,
) -> Outcome:
    """Run all jobs under a progress bar with an ETA; a failing one stops only those that wait for it.

    To be called in the main thread, which no worker outlives.

    Args:
        workers: how many run at a time on this machine.
        cluster: where it is given, they are submitted there instead and waited for; all have to be ``Planned`` then.
    """
    planned = [job if isinstance(job, Planned) else Planned(f"job {n}", job) for n, job in enumerate(jobs)]
    if cluster is not None:
        from par.steps import slurm

        return slurm.run(planned, store, cluster, title)
    if isinstance(workers, int):
        workers = Workers(workers, max(workers, physical_cores()))
    total = sum(one.job.cost() for one in planned)
    with tqdm(total=total, desc=title, unit="img", unit_scale=True, mininterval=REFRESH_SECONDS) as bar:
        queue, slots = _Queue(planned, bar), Slots(store, workers)
        if workers.count == 1 or len(planned) < 2:
            _run_here(queue, store, slots)
        else:
            _run_in_processes(queue, store, slots, min(workers.count, len(planned)))
        bar.update(total - bar.n)  # a job that failed
    return Outcome.of(queue.results)


class _Queue:
    """Jobs that wait, in the order in which they are started, and the results of the others."""

    def __init__(self, jobs: Sequence[Planned], bar: tqdm):
        self.bar = bar
        self.results: list[Result] = []
        self._waiting = [(planned, 1) for planned in by_weight(jobs)]
        self._unfinished = {planned.key for planned in jobs}
        self._n_jobs = len(jobs)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> tuple[Planned, int] | None:
        """The next job that waits for no other, with the number of its attempt."""
        for position, (planned, _) in enumerate(self._waiting):
            if planned.after not in self._unfinished:
                return self._waiting.pop(position)
        return None

    def back(self, planned: Planned, attempt: int) -> None:
        """Undo :meth:`take`."""
        self._waiting.insert(0, (planned, attempt))

    def again(self, planned: Planned, attempt: int) -> None:
        """Let a job wait, last of all."""
        self._waiting.append((planned, attempt))

    def done(self, planned: Planned, result: Result) -> None:
        """Note what became of a job; those that waited for a failed one have failed too."""
        self.results.append(result)
        self._unfinished.discard(planned.key)
        if result.failure is not None:
            lost = [one for one, _ in self._waiting if one.after == planned.key]
            self._waiting = [(one, n) for one, n in self._waiting if one.after != planned.key]
            for one in lost:
                self.done(one, Result(one.job.label, failure=Failure(f"it needs {result.label}, which failed.")))
        self.show()

    def show(self) -> None:
        """Count the jobs beside the bar."""
        n_failed = sum(result.failure is not None for result in self.results)
        counts = {"waiting": len(self._waiting), "running": self._n_jobs - len(self._waiting) - len(self.results)}
        counts |= {"done": len(self.results) - n_failed, "failed": n_failed}
        self.bar.set_postfix_str(", ".join(f"{count} {name}" for name, count in counts.items()), refresh=False)


def _run_here(queue: _Queue, store: Store, slots: Slots) -> None:
    slot = _wait_for_slot(slots)
    try:
        with computing_on_one_thread():
            while (found := queue.take()) is not None:
                planned, _ = found
                with _on_card(slot.card):
                    queue.done(planned, attempt(planned.job, store, queue.bar.update))
    finally:
        slot.free()


def _wait_for_slot(slots: Slots) -> Slot:
    while (slot := slots.take()) is None:
        time.sleep(SLOT_SECONDS)
    return slot


@contextmanager
def _on_card(card: int | None) -> Iterator[None]:
    """Let ``cuda`` mean this card."""
    if card is None:
        yield
    else:
        with torch.cuda.device(card):
            yield


class _Worker:
    """A worker process with the job that it has; ``seen`` are the images that the job has gone through so far."""

    def __init__(self, store: Store, slot: Slot, planned: Planned, attempt: int):
        self.connection, theirs = Pipe()
        self._store, self._slot = store, slot
        command = [sys.executable, "-P", "-m", "par.steps.worker", str(os.getpid()), str(theirs.fileno())]
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)  # jobs are found wherever we find them
        with theirs, _interrupts_held_back():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": path},
            )
        self.give(planned, attempt)

    def give(self, planned: Planned, attempt: int) -> None:
        """Hand over a job; a worker that has just died is noticed by whoever waits for its answer."""
        self.planned, self.attempt, self.seen = planned, attempt, 0
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((self._store, planned.job, self._slot.card))

    def death(self) -> str:
        """How the worker ended, when it has hung up."""
        code = self._process.wait()
        self._slot.free()
        if code >= 0:
            return f"ended with exit code {code}"
        memory = " (perhaps out of memory: `workers: 1` in params.yaml needs less)" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{memory}"

    def end(self) -> None:
        """Kill the process; what it has finished is in the store."""
        self._process.kill()
        self._process.wait()
        self._slot.free()
        self.connection.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start a process that never gets Ctrl-C, which a terminal sends to all: its parent does and ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_in_processes(queue: _Queue, store: Store, slots: Slots, workers: int) -> None:
    pool: dict[Any, _Worker] = {}  # by connection
    try:
        while queue or pool:
            is_short = _start_workers(queue, store, slots, workers, pool)
            if not pool:  # other pipelines have all slots
                time.sleep(SLOT_SECONDS)
            for connection in wait(list(pool), SLOT_SECONDS if is_short else None):
                _hear(pool[connection], queue, pool)
    finally:
        for worker in pool.values():
            worker.end()


def _start_workers(queue: _Queue, store: Store, slots: Slots, workers: int, pool: dict[Any, _Worker]) -> bool:
    """Start as many workers as there are jobs, slots and leave for; whether only slots are short."""
    while len(pool) < workers and (found := queue.take()) is not None:
        slot = slots.take()
        if slot is None:
            queue.back(*found)
            return True
        worker = _Worker(store, slot, *found)
        pool[worker.connection] = worker
        queue.show()
    return False


def _hear(worker: _Worker, queue: _Queue, pool: dict[Any, _Worker]) -> None:
    """Take in what a worker says: progress, a result or, by hanging up, its death."""
    try:
        message = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        del pool[worker.connection]
        queue.bar.update(-worker.seen)
        return _bury(worker, queue)
    if isinstance(message, int):
        worker.seen += message
        queue.bar.update(message)
        return None
    queue.done(worker.planned, message)
    if (found := queue.take()) is not None:
        worker.give(*found)
        return queue.show()
    del pool[worker.connection]
    return worker.end()


def _bury(worker: _Worker, queue: _Queue) -> None:
    """After a worker's death: let its job wait for another, last of all (memory may be short), or fail for good."""
    death, label = worker.death(), worker.planned.job.label
    if worker.attempt < ATTEMPTS:
        tqdm.write(f"The worker of {label} {death}; the job runs once more in a fresh one.", file=sys.stderr)
        queue.again(worker.planned, worker.attempt + 1)
    else:
        failure = Failure(f"{ATTEMPTS} workers died of it, the last {death}.")
        queue.done(worker.planned, Result(label, failure=failure))


def serve(connection: Connection) -> None:
    """In a worker: run the jobs that come over the connection until the parent hangs up.

    Every job is answered by its progress, numbers of images, and last a result.
    """
    while True:
        try:
            store, job, card = connection.recv()
        except EOFError:
            return
        report = Paced(connection.send, REFRESH_SECONDS)
        with computing_on_one_thread(), _on_card(card):
            result = attempt(job, store, report.advance)
        report.send()
        connection.send(result)
