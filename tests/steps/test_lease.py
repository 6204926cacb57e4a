"""Leases: one owner at a time, and what happens when an owner dies, stops or lives on another machine."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from par.steps import lease
from par.steps.lease import Lease, machine
from par.steps.store import Store, entry_key

KEY = entry_key("a step")
FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


@pytest.fixture
def impatient(monkeypatch):
    """Waiters that ask all the time."""
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.01)


@pytest.fixture
def short(monkeypatch, impatient):
    """Leases that expire in two seconds."""
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 2.0)


@pytest.fixture
def no_flock(monkeypatch):
    """What a mount without locks says."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)


def together(n: int, work: Callable[..., None], *arguments: object) -> None:
    """Run ``work`` in ``n`` processes, none of which may fail."""
    processes = [FORK.Process(target=work, args=(number, *arguments)) for number in range(n)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * n


def dead_process() -> int:
    """The id of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def hold_alone(folder: Path, path: Path) -> None:
    """Take the lease, and fail if another has it too."""
    with Lease(path):
        (folder / "held").mkdir()
        time.sleep(0.001)
        (folder / "held").rmdir()


def hold_in_turn(_: int, folder: Path, path: Path) -> None:
    hold_alone(folder, path)


def _in_a_tight_loop(_: int, folder: Path, path: Path) -> None:
    for _ in range(40):
        hold_alone(folder, path)


def test_one_at_a_time_in_a_tight_loop_without_flock(tmp_path, impatient, no_flock):
    together(8, _in_a_tight_loop, tmp_path, tmp_path / "lease")
    assert not list(tmp_path.iterdir())


def _after_deaths(_: int, folder: Path, barrier, deaths: list[str]) -> None:
    for round_, text in enumerate(deaths):
        if barrier.wait(60) == 0:  # a process that fails breaks it, or all the others would wait for ever
            (folder / f"{round_}.lease").write_text(text)
        barrier.wait(60)
        hold_alone(folder, folder / f"{round_}.lease")


def test_of_many_who_find_a_dead_owner_one_follows_at_a_time(tmp_path, impatient, no_flock):
    text = f"here {dead_process()} {machine()} ab\n"
    together(6, _after_deaths, tmp_path, FORK.Barrier(6), [text] * 30)
    assert not list(tmp_path.iterdir())


def _note_and_compute(_: int, store: Store, log: Path, keys: list[str]) -> None:
    for key in keys:

        def compute(key: str = key) -> str:
            with open(log, "a") as handle:
                handle.write(f"{key}\n")
            return key

        assert store.get_or_compute(key, compute)[0] == key


def test_many_processes_compute_every_entry_once(tmp_path, impatient, no_flock):
    keys = [entry_key(number) for number in range(30)]
    together(8, _note_and_compute, Store(tmp_path / "store"), tmp_path / "log", keys)
    assert sorted((tmp_path / "log").read_text().split()) == sorted(keys)
    assert {path.name for path in (tmp_path / "store").glob("*/*")} == {f"{key}.pt" for key in keys}


def _compute_slowly(store: Store, started: Path, seconds: float) -> None:
    def compute() -> int:
        started.touch()
        time.sleep(seconds)
        return 3

    store.get_or_compute(KEY, compute)


def slow_owner(tmp_path: Path, seconds: float):
    """A process that holds the lease on KEY."""
    process = FORK.Process(target=_compute_slowly, args=(Store(tmp_path), tmp_path / "started", seconds))
    process.start()
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("buried", [True, False])
def test_a_killed_owner_is_followed_at_once(tmp_path, buried):
    owner = slow_owner(tmp_path, 600)
    os.kill(owner.pid, signal.SIGKILL)
    if buried:
        owner.join()
    else:
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    start = time.monotonic()
    assert Store(tmp_path).get_or_compute(KEY, lambda: 3) == (3, True)
    assert time.monotonic() - start < 2
    owner.join()


def test_an_owner_that_stops_past_its_expiry_goes_on_beside_its_successor(tmp_path, short, capsys):
    owner, store = slow_owner(tmp_path, 2.0), Store(tmp_path)
    os.kill(owner.pid, signal.SIGSTOP)
    successor = threading.Thread(target=_compute_slowly, args=(store, tmp_path / "again", 3.0))
    successor.start()
    while not (tmp_path / "again").exists():
        time.sleep(0.01)
    printed = capsys.readouterr().err
    os.kill(owner.pid, signal.SIGCONT)
    owner.join()
    assert owner.exitcode == 0 and store.get(KEY) == 3
    assert f"process {owner.pid} on" in printed and "was not renewed for 2 s" in printed
    assert store.lease_path(KEY).exists(), "the owner that was late has removed its successor's lease"
    successor.join()
    assert store.get(KEY) == 3 and len(list(store.path(KEY).parent.iterdir())) == 1


def test_only_change_tells_whether_the_owner_on_another_machine_lives(tmp_path, short):
    """Its clock is years away and runs backwards; its process id is that of a dead process here."""
    store, path = Store(tmp_path), Store(tmp_path).lease_path(KEY)
    path.parent.mkdir()
    path.write_text(f"node7 {dead_process()} another-boot ab\n")
    last_beat, stop = [0.0], time.monotonic() + 4.0

    def beat() -> None:
        for second in range(4_000_000_000, 0, -1):
            if time.monotonic() >= stop:
                return
            os.utime(path, (second, second))
            last_beat[0] = time.monotonic()
            time.sleep(0.1)

    heart = threading.Thread(target=beat)
    heart.start()
    entry = store.get_or_compute(KEY, lambda: time.monotonic())[0]
    heart.join()
    assert 2.0 <= entry - last_beat[0] < 4.0


def test_a_live_owner_keeps_its_lease_however_long_it_computes(tmp_path, short):
    owner = slow_owner(tmp_path, 4.0)
    assert Store(tmp_path).get_or_compute(KEY, lambda: pytest.fail("computed twice")) == (3, False)
    owner.join()


@pytest.mark.parametrize("text", ["", "half an own", f"here 0 {machine()} ab\n", f"here 99999999999 {machine()} ab\n"])
def test_a_lease_that_names_no_process_expires(tmp_path, short, text):
    store = Store(tmp_path)
    store.lease_path(KEY).parent.mkdir()
    store.lease_path(KEY).write_text(text)
    start = time.monotonic()
    assert store.get_or_compute(KEY, lambda: 3) == (3, True)
    assert time.monotonic() - start >= 2.0


def _interrupted(path: Path, stopped: Path, go_on: Path) -> None:
    """Take the lease; be interrupted between the look at a dead owner's and its removal."""
    read, looks = lease._read, []

    def read_and_stop(read_path: Path) -> tuple[str, int] | None:
        found = read(read_path)
        if read_path == path:
            looks.append(found)
            if len(looks) == 2:  # the first is that of a waiter
                stopped.touch()
                while not go_on.exists():
                    time.sleep(0.01)
        return found

    lease._read = read_and_stop
    with Lease(path):
        pass


def _hold(path: Path, held: Path, release: Path) -> None:
    with Lease(path):
        held.touch()
        while not release.exists():
            time.sleep(0.01)


def wait_for(path: Path, seconds: float = 60.0) -> bool:
    """Whether the file came to be in so many seconds."""
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return path.exists()


def test_who_is_interrupted_before_it_removes_a_dead_lease_removes_no_other(tmp_path, impatient):
    path, stopped, go_on = tmp_path / "lease", tmp_path / "stopped", tmp_path / "go on"
    held, release = tmp_path / "held", tmp_path / "release"
    path.write_text(f"here {dead_process()} {machine()} ab\n")
    late = FORK.Process(target=_interrupted, args=(path, stopped, go_on))
    late.start()
    assert wait_for(stopped)
    other = FORK.Process(target=_hold, args=(path, held, release))
    other.start()
    wait_for(held, 0.5)  # it must not, but if it does, the late one goes on beside it
    go_on.touch()
    assert wait_for(held)
    time.sleep(0.3)
    assert f" {other.pid} " in path.read_text()
    release.touch()
    for process in (late, other):
        process.join()
        assert process.exitcode == 0
    assert not path.exists()


def test_who_dies_while_it_removes_a_dead_lease_is_followed_at_once(tmp_path, impatient):
    for name in ("lease", "lease.removal", "lease.removal.removal"):
        (tmp_path / name).write_text(f"here {dead_process()} {machine()} ab\n")
    start = time.monotonic()
    together(6, hold_in_turn, tmp_path, tmp_path / "lease")
    assert time.monotonic() - start < 10 and not list(tmp_path.iterdir())


def test_what_was_found_is_taken_away_and_nothing_else(tmp_path):
    """The text of an owner that has not yet written its name is that of one that died before it could."""
    path = tmp_path / "lease"
    path.touch()
    found = lease._read(path)
    os.utime(path, (1, 1))
    lease._take_away(path, found)
    assert list(tmp_path.iterdir()) == [path]
    lease._take_away(path, lease._read(path))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_lease_behind(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        Lease(tmp_path / "lease").acquire()
    assert not list(tmp_path.iterdir())


def test_an_entry_that_another_client_of_nfs_replaces_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.get_or_compute(KEY, lambda: 3)
    whole, asked = Path.read_bytes, []

    def stale_once(path: Path) -> bytes:
        asked.append(path)
        if len(asked) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", stale_once)
    assert store.get(KEY) == 3 and len(asked) == 2
