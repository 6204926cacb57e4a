"""Journals: what stages report, on disk as JSON lines before `pipeline.sync` brings it to MLflow."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from par.config import resolve_path

PARENT = "parent"  # the run id that stands for the pipeline's run in a journal
OWN = "0"  # the run id of the stage itself in its journal


def home() -> Path:
    """The folder of journals and artifact copies: in the main checkout, also in a temporary experiment."""
    return resolve_path(".mlflow").resolve()


class Journal:
    """One stage's events as JSON lines. The file stays locked while its stage lives: see :func:`read_closed`."""

    def __init__(self, stage_name: str) -> None:
        folder = home() / "journal"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{milliseconds()}-{os.getpid()}-{safe_name(stage_name)}.jsonl"
        self.stage_name = stage_name
        self.n_children = 0
        draft = path.with_suffix(".draft")  # nobody may see the journal before it is locked
        self._file = open(draft, "x", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        draft.rename(path)

    def write(self, kind: str, run: str, **fields: Any) -> None:
        """Append one event; it is on disk when this returns."""
        self._file.write(json.dumps({"kind": kind, "run": run, "time": milliseconds(), **fields}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the file; from now on any process may publish it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked worker that still holds the file would keep the lock
        self._file.close()


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
