"""The content-addressed store of finished steps.

An entry is named by the hash of everything that decides its content, so asking twice computes once: that gives resume
after a crash, cheap sweeps and cheap extra seeds. Entries are plain data and tensors, written to a temporary name and
renamed, and carry a digest: a damaged one is reported and computed again.

    python -m par.steps.store list | verify | prune --older-than-days 30
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from par import files
from par.config import resolve_path

DIGEST_BYTES = 32
DEFAULT_FOLDER = ".par/store"


def entry_key(content: Any) -> str:
    """Hexadecimal SHA-256 of the canonical JSON of what decides an entry's content."""
    return files.sha256_bytes(files.canonical_json(content).encode())


class DamagedEntryError(ValueError):
    """An entry whose bytes do not match its digest."""


class Store:
    """Entries by key in ``folder``; safe for any number of processes that share the folder."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def path(self, key: str) -> Path:
        """Where the entry ``key`` lies."""
        return self.folder / key[:2] / f"{key}.pt"

    def running_path(self, key: str) -> Path:
        """Where the checkpoint of the entry ``key`` lies while it is computed (:mod:`par.steps.checkpoint`)."""
        return self.folder / "running" / f"{key}.pt"

    def get(self, key: str) -> Any | None:
        """The entry, on the CPU, or None where there is none or it is damaged (then it is reported and removed)."""
        try:
            return read_entry(self.path(key))
        except FileNotFoundError:
            return None
        except DamagedEntryError as error:
            print(f"{error}; it is computed again.", file=sys.stderr)
            self.path(key).unlink(missing_ok=True)
            return None

    def get_or_compute(self, key: str, compute: Callable[[], Any]) -> tuple[Any, bool]:
        """The entry and whether it had to be computed.

        A lock per key keeps two processes (an orphan of a killed pipeline and its successor, say) from computing the
        same entry: the second waits and reads.
        """
        entry = self.get(key)
        if entry is not None:
            return entry, False
        lock = self.folder / "locks" / f"{key}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            entry = self.get(key)
            if entry is not None:
                return entry, False
            entry = compute()
            write_entry(self.path(key), entry)
            return entry, True

    def entries(self) -> Iterator[Path]:
        """Files of all entries, oldest first."""
        return iter(sorted(self.folder.glob("??/*.pt"), key=lambda path: (path.stat().st_mtime, path.name)))

    def leftovers(self) -> Iterator[Path]:
        """Checkpoints of steps in progress, and of those that were killed and not gone on with."""
        return iter(sorted(self.folder.glob("running/*.pt")))


def write_entry(path: Path, entry: Any) -> None:
    """Write plain data and tensors with a digest, atomically."""
    buffer = io.BytesIO()
    torch.save(entry, buffer)
    payload = buffer.getvalue()
    content = hashlib.sha256(payload).digest() + payload
    files.write_atomically(path, lambda draft: draft.write_bytes(content))


def read_entry(path: Path) -> Any:
    """What :func:`write_entry` wrote, on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedEntryError: its bytes do not match its digest.
    """
    content = path.read_bytes()
    digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != digest:
        raise DamagedEntryError(f"Store entry {path} is damaged ({len(content)} bytes)")
    return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line of the store; exits with 1 where ``verify`` finds damage."""
    parser = argparse.ArgumentParser(prog="python -m par.steps.store", description="The store of finished steps.")
    parser.add_argument("action", choices=("list", "verify", "prune"))
    parser.add_argument("--folder", type=Path, default=resolve_path(DEFAULT_FOLDER))
    parser.add_argument("--older-than-days", type=float, default=30.0, help="prune: age of the entries to delete")
    options = parser.parse_args(arguments)
    store, now, damaged, total_bytes, count = Store(options.folder), time.time(), 0, 0, 0
    for path in (*store.entries(), *store.leftovers()):
        status, age_days = path.stat(), (now - path.stat().st_mtime) / 86400
        if options.action == "prune":
            if age_days <= options.older_than_days:
                continue
            path.unlink()
        elif options.action == "verify":
            try:
                read_entry(path)
            except DamagedEntryError as error:
                damaged += 1
                print(error)
        else:
            print(f"{path.stem}  {status.st_size / 1e6:9.3f} MB  {age_days:6.1f} days")
        count, total_bytes = count + 1, total_bytes + status.st_size
    verb = {"list": "listed", "verify": "verified", "prune": "deleted"}[options.action]
    print(f"{count} entries {verb}, {total_bytes / 1e6:.1f} MB" + (f", {damaged} damaged" if damaged else ""))
    return 1 if damaged else 0


if __name__ == "__main__":
    sys.exit(main())
