"""How many workers a machine bears, and that pipelines side by side share them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from par.steps import slots
from par.steps.slots import Slots, Workers, physical_cores, workers_of
from par.steps.store import Store
from par.steps.workers import run_jobs
from tests.steps.test_workers import Do, nothing

HOLDER = """
import sys, time
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Two packages of two cores of two threads; this process is in the control group /a/b of both versions."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{cpu // 2 % 2}\n")
        (folder / "core_id").write_text(f"{cpu % 2}\n")  # cpu 0 and 4 are one core, as are 1 and 5, ...
    monkeypatch.setattr(slots, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(slots, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(slots, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    (tmp_path / "own").write_text("1:cpu,cpuacct:/a/b\n0::/a/b\n")
    for folder in ("cgroup/a/b", "cgroup/cpu/a/b"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_physical_cores_are_counted_once(machine, monkeypatch):
    assert physical_cores() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 5}, raising=False)
    assert physical_cores() == 2
    (machine / "cpu1/topology/core_id").unlink()
    assert physical_cores() == 3, "a core that nobody describes counts"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cgroup/a/cpu.max": "max 100000"}, 4),
        ({"cgroup/a/cpu.max": "250000 100000"}, 2),
        ({"cgroup/a/b/cpu.max": "50000 100000"}, 1),
        ({"cgroup/cpu/a/cpu.cfs_quota_us": "300000", "cgroup/cpu/a/cpu.cfs_period_us": "100000"}, 3),
        ({"cgroup/cpu/cpu.cfs_quota_us": "-1", "cgroup/cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_the_quota_of_any_control_group_counts(machine, files, expected):
    for name, text in files.items():
        (machine / name).write_text(f"{text}\n")
    assert physical_cores() == expected


def test_auto_is_a_core_or_a_card_each(machine, monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert workers_of("auto", 1, cpu) == Workers(4, 4) and workers_of(7, 1, cpu) == Workers(7, 7)
    assert workers_of("auto", 1, cuda) == Workers(3, 3, 3) and workers_of("auto", 2, cuda) == Workers(6, 6, 3)
    assert workers_of(1, 1, cuda) == Workers(1, 3, 3), "others may have the other cards"


def test_each_slot_has_its_card_in_turn_and_one_holder(tmp_path):
    workers = Workers(4, 4, 2)
    mine, other = Slots(Store(tmp_path), workers), Slots(Store(tmp_path), workers)
    taken = [mine.take(), mine.take(), other.take(), mine.take()]
    assert [slot.card for slot in taken] == [0, 1, 0, 1] and mine.take() is None and other.take() is None
    taken[1].free()
    assert other.take().number == 1


def test_a_killed_holder_frees_its_slot(tmp_path):
    mine = Slots(Store(tmp_path), Workers(1, 1))
    slot = mine.take()
    (path,) = tmp_path.glob("slots/*/0.lock")
    slot.free()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    holder.stdout.readline()
    assert mine.take() is None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert mine.take() is not None


@pytest.mark.parametrize("workers", [1, 2])
def test_who_finds_all_slots_taken_says_so_and_waits(tmp_path, workers, capfd):
    store, machine = Store(tmp_path), Workers(workers, workers)
    others = Slots(store, machine)
    taken = [others.take() for _ in range(workers)]
    timer = threading.Timer(0.5, lambda: [slot.free() for slot in taken])
    timer.start()
    outcome = run_jobs([Do("one", nothing), Do("two", nothing)], store, machine, "test")
    timer.join()
    assert outcome.steps_computed == 2
    assert capfd.readouterr().err.count(f"All {workers} worker slots of this machine are taken") == 1
    assert [others.take() for _ in range(workers + 1)][workers - 1 :] != [None, None], "all slots are free again"


@pytest.mark.parametrize("error", [NotImplementedError("no flock"), PermissionError(13, "no flock")])
def test_a_file_system_without_locks_is_said_and_keeps_nobody_waiting(tmp_path, monkeypatch, capsys, error):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr(slots.FileLock, "acquire", refuse)
    mine = Slots(Store(tmp_path), Workers(2, 2, 2))
    assert [mine.take().card, mine.take().card, mine.take()] == [0, 1, None]
    assert capsys.readouterr().err.count("no flock") == 1
