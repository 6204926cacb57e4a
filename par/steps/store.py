"""The content-addressed store of finished steps.

An entry is named by the hash of everything that decides its content, so asking twice computes once: that gives resume
after a crash, cheap sweeps and cheap extra seeds. Entries are plain data and tensors, written to a temporary name and
renamed, and begin with a digest of their name and content. What is damaged, under another entry's name, of an earlier
version or no plain data is reported, set aside as ``<key>.bad`` and computed again.

    python -m par.steps.store list | verify | prune --older-than-days 30 | export FILE | import FILE
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from par import files
from par.config import resolve_path
from par.steps.archive import ArchiveError, read_archive, write_archive
from par.steps.lease import Lease

DIGEST_BYTES = 32
DEFAULT_FOLDER = ".par/store"
ENTRY_NAME = re.compile(r"(?P<shard>[0-9a-f]{2})/(?P<key>(?P=shard)[0-9a-f]{62})\.pt")
SECONDS_PER_DAY = 86400
# Of a killed process; one that lives writes its drafts in seconds, touches its leases several times a minute and writes
# its checkpoints every few minutes. Earlier versions had locks/.
LEFTOVERS = ("??/*.bad*", "??.bad*", "??/.*", "locks/*", "running/*", "running/.*")


def entry_key(content: Any) -> str:
    """Hexadecimal SHA-256 of the canonical JSON of what decides an entry's content."""
    return files.sha256_bytes(files.canonical_json(content).encode())


class DamagedEntryError(ValueError):
    """Bytes that are not those of an entry of that name."""


class Store:
    """Entries by key in ``folder``; safe for any number of processes, on any number of machines, that share the folder.

    All methods raise OSError, naming the folder, where the disk is full, read-only, ...; nothing is half-written then.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def path(self, key: str) -> Path:
        """Where the entry ``key`` lies."""
        return self.folder / key[:2] / f"{key}.pt"

    def lease_path(self, key: str) -> Path:
        """Where the lease of the process lies that computes the entry ``key``."""
        return self.path(key).with_name(f".{key}.lease")

    def running_path(self, key: str) -> Path:
        """Where the checkpoint of the entry ``key`` lies while it is computed (:mod:`par.steps.checkpoint`)."""
        return self.folder / "running" / f"{key}.pt"

    def get(self, key: str) -> Any | None:
        """The entry, on the CPU, or None where there is none or it is damaged (then it is reported and set aside)."""
        path = self.path(key)
        try:
            with self._naming_the_folder():
                return read_entry(path)
        except FileNotFoundError:
            return None
        except DamagedEntryError as error:
            damaged, reason = path, str(error)
        except NotADirectoryError:
            damaged, reason = path.parent, "is no folder"
        with self._naming_the_folder():
            aside = _set_aside(damaged)
        print(f"Store entry {damaged} {reason}; it is now {aside.name} and computed anew if needed.", file=sys.stderr)
        return None

    def existing(self, key: str) -> Any:
        """The entry.

        Raises:
            KeyError: there is none.
        """
        entry = self.get(key)
        if entry is None:
            raise KeyError(f"The store has no entry {key}; run the stage again.")
        return entry

    def get_or_compute(self, key: str, compute: Callable[[], Any]) -> tuple[Any, bool]:
        """The entry and whether it had to be computed.

        A lease per key keeps two processes (an orphan of a killed pipeline and its successor, or two nodes) from
        computing the same entry: the second waits and reads. It lies beside the entry, because a client of NFS that
        creates a file learns what else is new in the folder. If both compute after all, equal entries replace each
        other.
        """
        entry = self.get(key)
        if entry is not None:
            return entry, False
        lease = Lease(self.lease_path(key))
        with self._naming_the_folder():
            self.path(key).parent.mkdir(parents=True, exist_ok=True)
            lease.acquire()
        try:
            entry = self.get(key)
            if entry is not None:
                return entry, False
            entry = compute()
            with self._naming_the_folder():
                write_entry(self.path(key), entry)
            return entry, True
        finally:
            lease.release()

    def add(self, name: str, content: bytes) -> bool:
        """Keep the bytes of the entry ``<two digits>/<key>.pt`` of another store; False where a good one is here.

        Raises:
            DamagedEntryError: the bytes are not those of an entry of that name.
        """
        match = ENTRY_NAME.fullmatch(name)
        if match is None:
            raise DamagedEntryError("is no name of an entry")
        _unpack(name, content)
        if self.get(match["key"]) is not None:
            return False
        with self._naming_the_folder():
            files.write_atomically(self.path(match["key"]), lambda draft: draft.write_bytes(content))
        return True

    def entries(self) -> Iterator[Path]:
        """Files of all entries, oldest first."""
        return iter(sorted(self.folder.glob("??/*.pt"), key=lambda path: (path.stat().st_mtime, path.name)))

    def running(self) -> Iterator[Path]:
        """Checkpoints of steps in progress, and of those that were killed and not gone on with."""
        return iter(sorted(self.folder.glob("running/*.pt")))

    def prune(self, older_than_days: float, keep: Collection[str] = ()) -> tuple[int, int, int]:
        """Delete the entries of that age but those in ``keep``, and what killed processes and damage left behind.

        Leftovers are never taken in their first day, when their process may still live.

        Returns:
            number of entries deleted, of leftovers deleted, and bytes of both.
        """
        now, n_bytes, counts = time.time(), 0, []
        leftovers = sorted({path for pattern in LEFTOVERS for path in self.folder.glob(pattern)})
        entries = [path for path in self.entries() if path.stem not in keep]
        for paths, days in ((entries, older_than_days), (leftovers, max(older_than_days, 1.0))):
            old = [path for path in paths if now - path.lstat().st_mtime > days * SECONDS_PER_DAY]
            n_bytes += sum(path.lstat().st_size for path in old)
            counts.append(len(old))
            for path in old:
                _delete(path)
        return counts[0], counts[1], n_bytes

    @contextmanager
    def _naming_the_folder(self) -> Iterator[None]:
        """Let errors of the whole disk name the store, not a file in it: then all jobs fail by the same sentence."""
        try:
            yield
        except OSError as error:
            if error.errno not in files.DISK_ERRORS:
                raise
            raise OSError(error.errno, error.strerror, str(self.folder)) from error


def write_entry(path: Path, entry: Any) -> None:
    """Write plain data and tensors, atomically, after a digest of them and of the file's name and folder."""
    buffer = io.BytesIO()
    torch.save(entry, buffer)
    payload = buffer.getvalue()
    content = _digest(_name(path), payload) + payload
    files.write_atomically(path, lambda draft: draft.write_bytes(content))


def read_entry(path: Path) -> Any:
    """What :func:`write_entry` wrote, on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedEntryError: it is a folder, its bytes are not those of an entry of that name, or they hold more than
            plain data and tensors.
    """
    return _unpack(_name(path), _bytes(path))


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise DamagedEntryError("is a folder") from None
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return path.read_bytes()  # another client of NFS has replaced it while we read


def _unpack(name: str, content: bytes) -> Any:
    digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if _digest(name, payload) != digest:
        if hashlib.sha256(payload).digest() == digest:
            raise DamagedEntryError("is of an earlier version, whose digest does not cover the name")
        raise DamagedEntryError(f"is damaged or another entry's ({len(content)} bytes)")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # unpickling can raise anything
        reason = str(error).partition("\n")[0][:100]
        raise DamagedEntryError(f"holds what torch refuses to load ({type(error).__name__}: {reason})") from None


def _digest(name: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(name.encode())
    digest.update(payload)
    return digest.digest()


def _set_aside(path: Path) -> Path:
    """Rename a file or folder to the first free name of ``<stem>.bad``, ``<stem>.bad1``, ..."""
    aside, number = path.with_suffix(".bad"), 0
    while os.path.lexists(aside):
        number += 1
        aside = path.with_suffix(f".bad{number}")
    with suppress(FileNotFoundError):  # another process did it
        path.rename(aside)
    return aside


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line of the store; exits with 1 where ``verify``, ``export`` or ``import`` meets a bad entry."""
    options = _parser().parse_args(arguments)
    store = Store(options.folder)
    try:
        match options.command:
            case "list":
                return _list(store)
            case "verify":
                return _verify(store)
            case "prune":
                return _prune(store, options.older_than_days)
            case "export":
                return _export(store, options.file)
        return _import(store, options.file)
    except OSError as error:
        print(files.in_words(error), file=sys.stderr)
    except ArchiveError as error:
        print(error, file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m par.steps.store", description="The store of finished steps.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    texts = {
        "list": "name, size and age of every entry",
        "verify": "read every entry and report the bad ones",
        "prune": "delete old entries, and what killed processes left behind",
        "export": "write all good entries to one archive, to take what was computed to another machine",
        "import": "add the entries of an archive; a good one that is here stays",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--folder", type=Path, default=resolve_path(DEFAULT_FOLDER), help="default: %(default)s")
        if name == "prune":
            command.add_argument("--older-than-days", type=float, default=30.0, help="default: %(default)g")
        if name in ("export", "import"):
            command.add_argument("file", type=Path)
    return parser


def _list(store: Store) -> int:
    total = count = 0
    for path in (*store.entries(), *store.running()):
        status = path.stat()
        age_days = (time.time() - status.st_mtime) / SECONDS_PER_DAY
        print(f"{path.stem}  {status.st_size / 1e6:9.3f} MB  {age_days:6.1f} days")
        count, total = count + 1, total + status.st_size
    print(f"{count} entries, {total / 1e6:.1f} MB")
    return 0


def _verify(store: Store) -> int:
    count = bad = 0
    for path in (*store.entries(), *store.running()):
        count += 1
        try:
            read_entry(path)
        except DamagedEntryError as error:
            bad += 1
            print(f"Store entry {path} {error}.")
    print(f"{count} entries, {bad} of them bad" + ("; whoever needs one computes it again." if bad else "."))
    return int(bad > 0)


def _prune(store: Store, older_than_days: float) -> int:
    n_entries, n_leftovers, n_bytes = store.prune(older_than_days)
    print(f"{n_entries} entries and {n_leftovers} leftovers deleted, {n_bytes / 1e6:.1f} MB")
    return 0


def _export(store: Store, file: Path) -> int:
    exported, bad = [], []

    def good() -> Iterator[tuple[str, bytes]]:
        for path in sorted(store.entries()):
            try:
                content = _bytes(path)
                _unpack(_name(path), content)
            except DamagedEntryError:
                bad.append(path)
                continue
            exported.append(path)
            yield _name(path), content

    write_archive(file, good())
    left_out = f"; {len(bad)} bad ones left out, `verify` names them" if bad else ""
    print(f"{len(exported)} entries exported to {file}{left_out}.")
    return int(bool(bad))


def _import(store: Store, file: Path) -> int:
    n_added = n_present = n_refused = 0
    for name, content in read_archive(file):
        try:
            if content is None:
                raise DamagedEntryError("is compressed, encrypted or damaged")
            if store.add(name, content):
                n_added += 1
            else:
                n_present += 1
        except DamagedEntryError as error:
            n_refused += 1
            print(f"Refused: {name!r} {error}.", file=sys.stderr)
    print(f"{n_added} entries imported, {n_present} were there, {n_refused} refused.")
    return int(n_refused > 0)


if __name__ == "__main__":
    sys.exit(main())
