"""What people read out of a report: prose kept beside it, written once while the report is rendered often."""

from __future__ import annotations

import re
from dataclasses import dataclass

from par.reporting.page import Item, Points, Section, Text
from par.schema import ConfigError

COMMIT = re.compile(r"<!-- commit: ([0-9a-f]{7,40}) -->\s*")


@dataclass(frozen=True)
class Reading:
    """A reading of the report that was stamped with ``commit``: paragraphs, and lists of points as tuples."""

    commit: str
    parts: tuple[str | tuple[str, ...], ...]

    def section(self, commit: str) -> Section:
        """The section of the report stamped with ``commit``; if the reading is of another, it says so."""
        items: list[Item] = []
        if not commit.startswith(self.commit):
            items.append(
                Text(f"Written for the report of commit {self.commit}; the numbers of this one are in its tables.")
            )
        items += [Text(part) if isinstance(part, str) else Points(part) for part in self.parts]
        return Section("Reading", tuple(items))


def parse_reading(text: str, where: str) -> Reading:
    """A reading from Markdown: ``<!-- commit: abc1234 -->`` first, then paragraphs and lists with blank lines between.

    Raises:
        ConfigError: it does not begin with the commit whose report it reads; ``where`` is its file in the message.
    """
    first = COMMIT.match(text)
    if first is None:
        raise ConfigError(f"{where} must begin with <!-- commit: ... -->, the commit of the report that it reads.")
    parts: list[str | tuple[str, ...]] = []
    for block in re.split(r"\n\s*\n", text[first.end() :].strip()):
        if block.startswith("- "):
            parts.append(tuple(" ".join(point.split()) for point in re.split(r"(?:^|\n)- ", block)[1:]))
        else:
            parts.append(" ".join(block.split()))
    return Reading(first[1], tuple(parts))
