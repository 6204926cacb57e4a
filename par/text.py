"""Names that people give to tasks, classes and files, made fit for one line."""

from __future__ import annotations

from collections.abc import Sequence


def one_line(text: str, width: int | None = None) -> str:
    """``text`` with every run of blanks, line breaks and control characters as one blank, cut to ``width`` letters."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return plain if width is None or len(plain) <= width else plain[: width - 1].rstrip() + "…"


def listing(names: Sequence[str], limit: int = 5) -> str:
    """The first ``limit`` names, each on one line, and how many there are beyond: ``a, b and 3 more``."""
    shown = ", ".join(one_line(name, 40) for name in names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
