"""Journals: what stages report, on disk as JSON lines before `pipeline.sync` brings it to MLflow."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from par.config import resolve_path
from par.files import write_atomically

PARENT = "parent"  # the run id that stands for the pipeline's run in a journal
OWN = "0"  # the run id of the stage itself in its journal


def home() -> Path:
    """The folder of journals and artifact copies: in the main checkout, also in a temporary experiment."""
    return resolve_path(".mlflow").resolve()


class Journal:
    """One stage's events as JSON lines. The file stays locked while its stage lives: see :func:`read_closed`.

    A disk that is full or read-only costs events, never the stage: what could not be written is counted in ``n_lost``,
    and ``problem`` says why. Every event is written whole or not at all.
    """

    def __init__(self, stage_name: str) -> None:
        self.stage_name = stage_name
        self.begun = milliseconds()
        self.n_children = 0
        self.n_events = 0
        self.n_lost = 0
        self.problem = ""
        self._file: FileIO | None = None
        self._size = 0  # bytes that hold whole events
        self._unknown: set[str] = set()  # runs whose first event is lost: MLflow could not place their others
        with self._losing():
            self._open()

    def _open(self) -> None:
        folder = home() / "journal"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.begun}-{os.getpid()}-{safe_name(self.stage_name)}.jsonl"
        draft = path.with_suffix(".draft")  # nobody may see the journal before it is locked
        file = open(draft, "xb", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX)
        draft.rename(path)
        self._file = file

    def write(self, kind: str, run: str, **fields: Any) -> None:
        """Append one event; when this returns it is on disk, or counted as lost."""
        line = json.dumps({"kind": kind, "run": run, "time": milliseconds(), **fields}) + "\n"
        self.n_events += 1
        kept = False
        if self._file is not None and not self._unknown & {run, PARENT}:
            with self._losing():
                self._append(self._file, line.encode())
                kept = True
        if not kept:
            self.n_lost += 1
            if kind in ("stage", "start"):
                self._unknown.add(run)

    def write_with_files(self, kind: str, run: str, files: Mapping[str, Callable[[Path], Any]], **fields: Any) -> None:
        """Append an event that needs files of ``.mlflow/files``: each is filled by its function, unless it is there."""
        kept = False
        with self._losing():
            for copy, write in files.items():
                if not (home() / "files" / copy).is_file():
                    write_atomically(home() / "files" / copy, write)
            kept = True
        if kept:
            self.write(kind, run, **fields)
        else:
            self.n_events += 1
            self.n_lost += 1

    def close(self) -> None:
        """Release the file; from now on any process may publish it."""
        if self._file is not None:
            with self._losing():
                fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked worker that still holds the file would keep the lock
                self._file.close()

    def _append(self, file: FileIO, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):  # a disk that fills up takes a part
                written += os.pwrite(file.fileno(), line[written:], self._size + written)
            os.fsync(file.fileno())
        except OSError:
            self._file = None  # unless the part can be taken back, nothing may follow it
            os.ftruncate(file.fileno(), self._size)
            self._file = file
            raise
        self._size += len(line)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Go on after a disk's refusal; the first one is what a user has to mend."""
        try:
            yield
        except OSError as error:
            self.problem = self.problem or f"{error.strerror}: {error.filename or home()}"


def waiting() -> list[Path]:
    """The journals that wait for publication and whose stage has ended, oldest first."""
    return [path for path in sorted((home() / "journal").glob("*.jsonl")) if _is_closed(path)]


def wait_again() -> None:
    """Make every published journal wait for publication once more."""
    for path in (home() / "journal").glob("*.done"):
        path.rename(path.with_suffix(".jsonl"))


def _is_closed(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


def read_closed(path: Path) -> list[dict[str, Any]] | None:
    """The events of a journal whose stage has ended; ``None`` while it is being written or if it is gone.

    A last line cut off by a power failure is left out.
    """
    try:
        with open(path, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            lines = file.read().splitlines(keepends=True)
    except (FileNotFoundError, BlockingIOError):
        return None
    return [json.loads(line) for line in lines if line.endswith("\n")]


def safe_name(text: str) -> str:
    """``text`` with nothing in it that a file name or an MLflow filter would trip over."""
    return re.sub(r"[^\w@.-]", "_", text)


def milliseconds() -> int:
    """The time of day, since 1970 as MLflow counts it."""
    return time.time_ns() // 1_000_000
