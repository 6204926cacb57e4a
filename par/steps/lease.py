"""A lease on a file's name, for processes on any number of machines that share its folder.

It needs no ``flock``, which some mounts of NFS and Lustre do not honour over machines: a lease is a file that only one
process can create (O_EXCL) and that names its owner. The owner touches it every HEARTBEAT_SECONDS. Whoever waits takes
it away once it has not changed for EXPIRY_SECONDS on the waiter's own monotonic clock, so that no two machines' clocks
are compared; and at once where the owner was a process of this machine and is dead.

An owner that only seemed dead (stopped, or cut off from the file system) goes on beside its successor. So a lease
saves time and protects no data: what it guards must come out right when two do it at once.

`filelock.SoftFileLease` is built alike but takes leases away by RENAME_EXCHANGE, which NFS does not have; `flufl.lock`
compares the clocks of the machines and renews nothing by itself.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

HEARTBEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
POLL_SECONDS = 0.2
OWNER = re.compile(r"(?P<host>\S+) (?P<process>\d{1,9}) (?P<machine>\S+) \w+\n")


class Lease:
    """The lease file ``path``, whose folder must exist; held while a ``with`` lasts, or between two calls."""

    def __init__(self, path: Path):
        self._path = path

    def acquire(self) -> None:
        """Wait until nobody else holds it.

        Raises:
            OSError: the file cannot be written, ...
        """
        seen, since = None, 0.0
        while not self._create():
            found = _read(self._path)
            if found != seen:
                seen, since = found, time.monotonic()
            if found is not None and _is_dead(found[0]):
                _take_away(self._path, found)
            elif found is not None and time.monotonic() - since >= EXPIRY_SECONDS:
                owner = OWNER.fullmatch(found[0])
                of_whom = f" of process {owner['process']} on {owner['host']}" if owner else ""
                print(
                    f"The lease {self._path}{of_whom} was not renewed for {EXPIRY_SECONDS:g} s: its work is done here.",
                    file=sys.stderr,
                )
                _take_away(self._path, found)
            else:
                time.sleep(POLL_SECONDS)

    def release(self) -> None:
        """Let others have it; a disk that refuses leaves the file behind, which then expires."""
        self._released.set()
        self._heart.join()
        os.close(self._descriptor)
        with suppress(OSError):
            found = _read(self._path)
            if found is not None and found[0] == self._owner:  # no successor's
                self._path.unlink(missing_ok=True)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _create(self) -> bool:
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        self._owner = f"{socket.gethostname()} {os.getpid()} {machine()} {secrets.token_hex(8)}\n"
        try:
            os.write(self._descriptor, self._owner.encode())
        except OSError:
            os.close(self._descriptor)
            self._path.unlink()
            raise
        self._released = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"renews {self._path.name}", daemon=True)
        self._heart.start()
        return True

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # the file system may come back before the lease expires
                os.utime(self._descriptor)  # by name it could be a successor's


def machine() -> str:
    """Where a process id means the same process: one boot of one kernel and one namespace, on Linux."""
    names = [socket.gethostname()]
    with suppress(OSError):
        names = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return "/".join(names)


def _read(path: Path) -> tuple[str, int] | None:
    """Owner and time of a lease, or None where there is none. NFS asks its server for both when a file is opened."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # another client of NFS has removed it while we read
            return None
        raise


def _is_dead(text: str) -> bool:
    """Whether the owner was a process of this machine that has ended, buried or not."""
    owner = OWNER.fullmatch(text)
    if owner is None or owner["machine"] != machine():
        return False
    process = int(owner["process"])
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, which a hardened /proc would not show
        return False
    with suppress(psutil.Error):
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    return False


def _take_away(path: Path, found: tuple[str, int]) -> None:
    """Remove the lease at ``path`` if it still is the one that was found.

    Between a waiter's look and its removal another waiter may have removed it and become the owner. So only who holds a
    lease on removing looks and removes; one whose holder died is taken away likewise, by who holds a lease on that.
    """
    with Lease(path.with_name(f"{path.name}.removal")):
        if _read(path) == found:
            path.unlink(missing_ok=True)  # an owner that only seemed dead may remove it too
