"""What becomes of jobs on so many workers, by what each will take: the executors' order, without the computing."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from par.steps.jobs import by_weight


@dataclass(frozen=True)
class Timed:
    """A job that takes ``weight`` seconds and starts after the job ``after``, if that is among the jobs."""

    key: str
    after: str | None
    weight: float


@dataclass(frozen=True)
class Schedule:
    """Seconds from the first start to the last end, of all jobs together, and of the longest job with the one that it
    waits for."""

    makespan: float
    work: float
    critical: float
    workers: int

    @property
    def utilisation(self) -> float:
        """Share of the workers' time that is spent on jobs."""
        return self.work / (self.makespan * self.workers) if self.makespan else 1.0

    @property
    def limit(self) -> str:
        """What keeps it from being shorter: the number of workers, or the longest chain."""
        return "the longest chain" if self.critical > 0.9 * self.makespan else "the number of workers"


def simulate(jobs: Sequence[Timed], workers: int) -> Schedule:
    """Start the heaviest job that waits for nothing whenever a worker is free."""
    seconds = {job.key: job.weight for job in jobs}
    followers: dict[str, list[tuple[int, Timed]]] = {}
    ready: list[tuple[int, Timed]] = []
    for rank, job in enumerate(by_weight(jobs)):
        if job.after in seconds:
            followers.setdefault(str(job.after), []).append((rank, job))
        else:
            ready.append((rank, job))
    running: list[tuple[float, int, Timed]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            rank, job = heapq.heappop(ready)
            heapq.heappush(running, (now + job.weight, rank, job))
        now, _, job = heapq.heappop(running)
        for follower in followers.pop(job.key, []):
            heapq.heappush(ready, follower)
    critical = max((job.weight + seconds.get(job.after or "", 0.0) for job in jobs), default=0.0)
    return Schedule(now, sum(seconds.values()), critical, workers)
