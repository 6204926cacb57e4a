"""How many jobs one machine computes at once, and on which of its cards each.

A *slot* is a file that a worker's parent holds locked while the worker lives; the kernel unlocks it however the parent
ends. All pipelines of one checkout (``dvc exp run --queue`` with several workers, say) share the slots of its store, so
that together they start no more workers than one of them may. Whoever finds no free slot waits for one, and holds
nothing meanwhile; whoever holds one computes, so all go on.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch
from filelock import FileLock, Timeout

from par.steps.store import Store

TOPOLOGY = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Workers:
    """How many workers a pipeline starts at most, on how many slots of the machine, and its number of cards.

    Slot k computes on card k modulo ``n_cards``.
    """

    count: int
    n_slots: int
    n_cards: int = 0


def workers_of(workers: int | Literal["auto"], per_device: int, device: torch.device) -> Workers:
    """``workers`` and ``workers_per_device`` of params.yaml on this machine.

    ``auto`` is one worker a physical core, on CUDA ``per_device`` workers a card. A number may go beyond that; one that
    stays below leaves the other slots to other pipelines.
    """
    n_cards = torch.cuda.device_count() if device.type == "cuda" else 0
    n_slots = max(1, n_cards * per_device if device.type == "cuda" else physical_cores())
    count = n_slots if workers == "auto" else workers
    return Workers(count, max(n_slots, count), n_cards)


def physical_cores() -> int:
    """Physical cores that this process may use: by its CPU affinity and by the quotas of its control groups."""
    if not hasattr(os, "sched_getaffinity"):
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    cores = {_core(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, int(min(len(cores), _quota())))


def _core(cpu: int) -> tuple[str, ...]:
    """What names the physical core of a logical one."""
    topology = TOPOLOGY / f"cpu{cpu}" / "topology"
    try:
        return tuple((topology / name).read_text().strip() for name in ("physical_package_id", "core_id"))
    except OSError:
        return (str(cpu),)


def _quota() -> float:
    """CPUs' worth of time that the control groups of this process allow it (versions 1 and 2); without end if none."""
    found = [float("inf")]
    try:
        lines = [line.split(":", 2) for line in OWN_CGROUPS.read_text().splitlines()]
    except OSError:
        return found[0]
    for _, controllers, path in lines:
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = CGROUPS / "cpu" if controllers else CGROUPS
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):
                if controllers:
                    quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (folder / "cpu.max").read_text().split()
                if int(quota) > 0:  # ValueError: "max"
                    found.append(int(quota) / int(period))
            if folder == base:
                break
    return min(found)


class Slots:
    """The slots of this machine for whoever computes into ``store``."""

    def __init__(self, store: Store, workers: Workers):
        host = re.sub(r"[^\w.-]", "_", socket.gethostname() or "localhost")
        self._folder, self._workers = store.folder / "slots" / host, workers
        self._held: dict[int, FileLock] = {}
        self._has_locks = self._is_silent = True

    def take(self) -> Slot | None:
        """A free slot, or None where all are taken."""
        for number in range(self._workers.n_slots):
            if number not in self._held:
                lock = FileLock(self._folder / f"{number}.lock")
                if self._locked(lock):
                    self._held[number] = lock
                    return Slot(self, number, number % self._workers.n_cards if self._workers.n_cards else None)
        if not self._held and self._is_silent:
            print(
                f"All {self._workers.n_slots} worker slots of this machine are taken by other pipelines of this "
                "checkout; this one waits for the first that is free.",
                file=sys.stderr,
            )
            self._is_silent = False
        return None

    def free(self, number: int) -> None:
        """Let others have a slot."""
        self._held.pop(number).release()

    def _locked(self, lock: FileLock) -> bool:
        try:
            if self._has_locks:
                self._folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(blocking=False)
        except Timeout:
            return False
        except (NotImplementedError, OSError) as error:  # no flock; read-only, which those may be who compute nothing
            self._has_locks = False
            print(
                f"{self._folder} takes no locks ({error}), so pipelines that run side by side on this machine each "
                "start all of their workers.",
                file=sys.stderr,
            )
        return True


@dataclass(frozen=True)
class Slot:
    """A slot that this process holds, and its card."""

    slots: Slots
    number: int
    card: int | None

    def free(self) -> None:
        """Let others have it."""
        self.slots.free(self.number)
