"""The numbers that the paper printed, read from published.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from par.config import Config
from par.schema import ConfigError, Range, parse, read_yaml

LIMITS = {"AP": Range(0, 1), "AF": Range(-1, 1), "M": Range(0, above=True), "hours": Range(0, above=True)}

PUBLISHED = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class Value:
    """One printed number: AP and AF as fractions, M in millions of parameters, hours in hours."""

    table: str
    method: str
    stream: str
    metric: str
    value: float
    marks: tuple[str, ...]  # what a reader must know before comparing: other backbone, quoted, remarks
    superseded: bool  # another table contradicts it and is believed
    backbone: str | None = None  # the network, where it is not that of the paper's other rows: AlexNet or MLP


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper: its number, title, and methods in its order. Of another paper: no number."""

    name: str
    number: int | None
    title: str
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """All of published.yaml: display names of methods and streams (stand-ins included), which stream of the paper each
    stand-in takes the place of, the tables, and the values in the paper's order."""

    methods: Mapping[str, str]
    streams: Mapping[str, str]
    stand_ins: Mapping[str, str]
    tables: tuple[PaperTable, ...]
    values: tuple[Value, ...]
    settings: Config | None = None  # what the paper trains with; None: unknown, and no budget is compared

    def find(self, stream: str, method: str, metric: str) -> Value | None:
        """The value to compare with: the first that is not superseded; None where the paper has none."""
        for value in self.values:
            if (value.stream, value.method, value.metric) == (stream, method, metric) and not value.superseded:
                return value
        return None

    def methods_on(self, stream: str) -> list[str]:
        """Methods with a value on ``stream``, in the paper's order."""
        return list(dict.fromkeys(value.method for value in self.values if value.stream == stream))

    def paper_stream(self, stream: str) -> str:
        """The stream of the paper that ``stream`` takes the place of: itself unless it is a stand-in."""
        return self.stand_ins.get(stream, stream)

    def table(self, name: str) -> PaperTable:
        """The table called ``name``.

        Raises:
            KeyError: there is none.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)


@dataclass(frozen=True)
class _Row:
    method: str
    values: Mapping[str, Any]
    quoted_from: str | None = None
    backbone: Literal["AlexNet", "MLP"] | None = None


@dataclass(frozen=True)
class _Table:
    name: str
    title: str
    rows: tuple[_Row, ...]
    number: Annotated[int, Range(1, 5)] | None = None  # none: not of PAR's paper
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _StandIn:
    stands_for: str
    title: str


@dataclass(frozen=True)
class _File:
    methods: Mapping[str, Any]
    streams: Mapping[str, Any]
    tables: tuple[_Table, ...]
    stand_ins: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Cell:
    value: float
    note: str | None = None
    superseded: bool = False


def load_published(path: Path = PUBLISHED, settings: Config | None = None) -> Published:
    """Read and check the published values; ``settings`` are those that the paper trains with.

    Raises:
        ConfigError: an unknown key, method, stream or metric, a value out of range, two values of one method, stream
            and metric that differ although neither is marked superseded, or a stand-in for no stream of the paper.
    """
    raw = parse(_File, read_yaml(path), path.name)
    values = tuple(
        _value(table, row, stream, metric, cell, raw)
        for table in raw.tables
        for row in table.rows
        for stream, cells in row.values.items()
        for metric, cell in cells.items()
    )
    believed: dict[tuple[str, str, str], Value] = {}
    for value in values:
        if value.superseded:
            continue
        first = believed.setdefault((value.stream, value.method, value.metric), value)
        if first.value != value.value:
            raise ConfigError(
                f"{path.name}: {value.metric} of {value.method} on {value.stream} is {first.value:g} in table "
                f"{first.table} and {value.value:g} in table {value.table}; mark one of them superseded."
            )
    stand_ins = {name: parse(_StandIn, block, f"{path.name} stand_ins.{name}") for name, block in raw.stand_ins.items()}
    for name, stand_in in stand_ins.items():
        if stand_in.stands_for not in raw.streams or name in raw.streams:
            raise ConfigError(
                f"{path.name} stand_ins.{name}: {stand_in.stands_for!r} must be one of {', '.join(raw.streams)}, and "
                f"{name} none of them."
            )
    return Published(
        methods=raw.methods,
        streams={**raw.streams, **{name: stand_in.title for name, stand_in in stand_ins.items()}},
        stand_ins={name: stand_in.stands_for for name, stand_in in stand_ins.items()},
        tables=tuple(
            PaperTable(table.name, table.number, table.title, tuple(row.method for row in table.rows))
            for table in raw.tables
        ),
        values=values,
        settings=settings,
    )


def _value(table: _Table, row: _Row, stream: str, metric: str, raw: Any, names: _File) -> Value:
    where = f"published.yaml {table.name}.{row.method}.{stream}.{metric}"
    for kind, name, known in (
        ("method", row.method, names.methods),
        ("stream", stream, names.streams),
        ("metric", metric, LIMITS),
    ):
        if name not in known:
            raise ConfigError(f"{where}: {kind} {name!r} is unknown; known are {', '.join(known)}.")
    cell = parse(_Cell, raw if isinstance(raw, Mapping) else {"value": raw}, where)
    if cell.value not in LIMITS[metric]:
        raise ConfigError(f"{where} = {cell.value:g} is out of range; allowed is a number {LIMITS[metric]}.")
    marks = (
        f"{row.backbone} backbone" if row.backbone else "",
        f"quoted from {row.quoted_from}" if row.quoted_from else "",
        table.notes.get(metric, ""),
        cell.note or "",
    )
    given = tuple(mark for mark in marks if mark)
    return Value(table.name, row.method, stream, metric, cell.value, given, cell.superseded, row.backbone)
