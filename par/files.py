"""Files whose bytes depend on their content alone and that are never half-written."""

from __future__ import annotations

import csv
import hashlib
import io
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


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file or directory beside ``path``, then rename it to ``path``.

    An existing file is replaced; an existing directory is removed first. A failing ``write`` leaves ``path`` as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        draft = workplace / path.name
        write(draft)
        if draft.is_file():
            with open(draft, "rb") as handle:
                os.fsync(handle.fileno())
        elif path.is_dir():
            shutil.rmtree(path)
        os.replace(draft, path)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


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

    write_atomically(path, lambda draft: torch.save(_unshared(value), draft))


def _unshared(value: Any) -> Any:
    """``value`` with every container a new one and equal texts the same object."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {_unshared(key): _unshared(item) for key, item in value.items()}
    return type(value)(map(_unshared, value)) if isinstance(value, (list, tuple)) else value


def sha256_bytes(content: bytes) -> str:
    """Hexadecimal SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file, read in blocks."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
