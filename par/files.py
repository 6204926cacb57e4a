"""Files whose bytes depend on their content alone and that are never half-written."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Errors of a disk as a whole: every other write there would fail as well. EFBIG: a limit on the size of files.
DISK_ERRORS = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "make it writable",
    errno.EACCES: "make it readable and writable",
    errno.EPERM: "make it readable and writable",
}


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file or directory beside ``path``, then rename it to ``path``.

    What was there is replaced, and of several writers at once the last wins. A failing ``write`` leaves ``path`` as it
    was. A reader never meets a half-written file or directory; while a directory is replaced there is none for a
    moment, because the system can rename no directory onto a full one.

    Raises:
        OSError: the disk is full, read-only, ...; it names ``path`` if the system named no file.
    """
    path = Path(path)
    workplace = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        workplace = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        draft = workplace / path.name
        write(draft)
        if draft.is_dir():
            _replace_directory(draft, path, workplace)
        else:
            with open(draft, "rb") as handle:
                os.fsync(handle.fileno())
            os.replace(draft, path)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        if workplace is not None:
            shutil.rmtree(workplace, ignore_errors=True)


def _replace_directory(draft: Path, path: Path, workplace: Path) -> None:
    """Rename ``draft`` to ``path``; what is there goes to ``workplace``. Every failure is another writer's success."""
    for number in itertools.count():
        try:
            return os.rename(draft, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, workplace / f"{number}.old")


def in_words(error: OSError) -> str:
    """What the system refused, where and, if it can be said, what to do about it: one sentence for a user."""
    reason = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename else ""
    remedy = DISK_ERRORS.get(error.errno or 0)
    return f"{where}{reason}" + (f"; {remedy} and run it again." if remedy else ".")


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text."""
    write_atomically(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def canonical_json(value: Any) -> str:
    """JSON on one line with sorted keys; NaN is refused because JSON has none."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON with sorted keys, one item a line: equal values give equal bytes."""
    write_text(path, json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """The value in a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table; floats keep all their digits (``repr``), missing values are empty."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


def write_npz(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as an uncompressed ``.npz`` that ``np.load`` reads; equal arrays give equal bytes.

    ``np.savez`` stamps the time of day into the archive, which would make DVC rerun every later stage.
    """

    def write(draft: Path) -> None:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(arrays):
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                with archive.open(entry, "w", force_zip64=True) as handle:
                    np.lib.format.write_array(handle, np.asarray(arrays[name]), allow_pickle=False)

    write_atomically(path, write)


def write_tensors(path: str | Path, value: Any) -> None:
    """Write plain data with tensors in it; ``torch.load(path, weights_only=True)`` reads it.

    Equal values give equal bytes: pickle refers back to a text or list that it has written only if it is the same
    object, so one that went through a file and back would be written differently.
    """
    import torch

    def write(draft: Path) -> None:
        try:
            torch.save(_unshared(value), draft)
        except RuntimeError:  # does not say that the disk refused, and why; writing the same through Python does
            content = io.BytesIO()
            torch.save(value, content)
            draft.write_bytes(content.getvalue())
            raise

    write_atomically(path, write)


def _unshared(value: Any) -> Any:
    """``value`` with every container a new one and equal texts the same object."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {_unshared(key): _unshared(item) for key, item in value.items()}
    return type(value)(map(_unshared, value)) if isinstance(value, (list, tuple)) else value


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Make ``target`` the file ``source`` without copying its bytes where the disk can do that.

    Both are then one file: neither may be written into, only replaced, as everything in this module does.
    """
    try:
        os.link(Path(source).resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def sha256_bytes(content: bytes) -> str:
    """Hexadecimal SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file, read in blocks."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
