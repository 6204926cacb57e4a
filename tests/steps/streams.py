"""A small stream for the tests of steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from par.streams import build_stream, definition


def built(folder: Path, text: str) -> Path:
    """Where the stream of a definition's ``text`` lies, built in ``folder`` with seed 0."""
    (folder / "tiny.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definition, "DEFINITIONS", folder)
        build_stream("tiny", 0, folder, folder / "0")
    return folder / "0"
