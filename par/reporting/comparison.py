"""A report beside another one of the same preset: what is equal to the bit, and which numbers agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from par.files import canonical_json, sha256_bytes
from par.reporting.scores import FORMATS, METRICS
from par.reporting.tables import Table, literal
from par.text import listing

FILE = "digests.json"
COMPARED = ("AP", "AF", "M")
DECIDES = ("decision", "group", "nearest_group", "cell_from", "head_only")  # of a plan's task: all but words and digits
Z = 1.96  # standard errors of a 95% interval
MAX_LISTED = 5  # numbers that the summary names
TEST = (
    "A number agrees if it is equal, or if AP or AF differ by no more than other test images could make of two equally "
    "good learners: 1.96 standard errors of the difference, from the binomial spread of every task's accuracy on its "
    "test images. Numbers are means over the seeds that both reports have, and so is the standard error: further seeds "
    "do not narrow it. Nothing is said about seeds themselves; two or three are too few for that. M must be equal."
)

NOT_RECORDED = (
    "Equal means the same digest: of the images and labels of all tasks, of what a plan decides, of the searched "
    "cells, of the classes predicted for all test images after every step; counted by seed. `not recorded there`: the "
    "other report was made before reports kept digests."
)


@dataclass(frozen=True)
class Record:
    """What a report holds to be compared.

    Args:
        results: stream -> content of ``results/<stream>.json``.
        digests: content of ``digests.json``, see :func:`digests`; empty in a report that was made before there was one.
    """

    results: Mapping[str, Any]
    digests: Mapping[str, Any]


@dataclass(frozen=True)
class Reference:
    """The report to compare with, and what it is called; without a record the name says why there is none."""

    name: str
    record: Record | None = None


@dataclass(frozen=True)
class Match:
    """How many of the things that both reports have are equal; ``there_only`` and ``here_only`` have no counterpart."""

    equal: int = 0
    compared: int = 0
    here_only: int = 0

    def __add__(self, other: Match) -> Match:
        return Match(self.equal + other.equal, self.compared + other.compared, self.here_only + other.here_only)

    @property
    def differs(self) -> bool:
        return self.equal < self.compared

    def words(self) -> str:
        """``2 of 2 equal``, ``not recorded there``; empty where there is nothing to compare."""
        if self.compared:
            return f"{self.equal} of {self.compared} equal"
        return "not recorded there" if self.here_only else ""


@dataclass(frozen=True)
class Number:
    """A metric of a learner, mean over the seeds that both reports have; ``tolerance`` by :data:`TEST`."""

    metric: str
    here: float
    there: float
    tolerance: float

    @property
    def difference(self) -> float:
        return self.here - self.there

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= self.tolerance + 1e-12

    def words(self) -> str:
        """``AP 0.613 (there 0.606)``."""
        digits = FORMATS[self.metric]
        return f"{self.metric} {self.here:{digits}} (there {self.there:{digits}})"


@dataclass(frozen=True)
class Row:
    """One learner on one stream, over the seeds that both reports have; data and plans belong to the stream, too."""

    stream: str
    learner: str
    plan: Match
    cells: Match
    predictions: Match
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Comparison:
    """Two reports: ``data`` by stream, a row for every learner that both have, and what only one of them has."""

    data: Mapping[str, Match]
    rows: tuple[Row, ...]
    here_only: tuple[str, ...]
    there_only: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether data or plans do."""
        return any(match.differs for match in (*self.data.values(), *(row.plan for row in self.rows)))

    @property
    def verdict(self) -> str:
        """In a few words."""
        if not self.rows:
            return "nothing to compare"
        if self.differs:
            return "differs"
        known = all(match.compared for match in self.data.values()) and any(row.plan.compared for row in self.rows)
        in_what = "agrees" if known else "agrees as far as is recorded there"
        return f"{in_what} but for some numbers" if self.differing() else in_what

    def differing(self) -> list[tuple[Row, Number]]:
        """The numbers that do not agree."""
        return [(row, number) for row in self.rows for number in row.numbers if not number.agrees]

    def summary(self) -> str:
        """One line: the verdict and how many of everything are equal."""
        parts, differing = _counts(self.data.values(), self.rows), self.differing()
        if differing:
            named = [f"{row.stream} {row.learner} {number.words()}" for row, number in differing[:MAX_LISTED]]
            more = ", ..." if len(differing) > MAX_LISTED else ""
            parts[-1] += f", {len(differing)} differ: {', '.join(named)}{more}"
        for where, names in (("here", self.here_only), ("there", self.there_only)):
            parts += [f"only {where}: {listing(names, MAX_LISTED)}"] if names else []
        return f"{self.verdict}: {'; '.join(parts)}."


def digests(
    data: Mapping[str, Mapping[str, str]],
    plans: Mapping[str, Mapping[str, Any]],
    cells: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]],
) -> dict[str, Any]:
    """The content of ``digests.json``: stream -> ``data`` (seed -> digest), ``plans`` and ``cells`` (PAR and its
    variants -> seed -> digest). Those of predictions stand in ``results/<stream>.json``.

    Of a plan the decisions count: distances, which are rounded, may differ in their last digit.

    Args:
        data, plans, cells: see :class:`par.reporting.report.Inputs`.
    """
    return {
        stream: {
            "data": dict(by_seed),
            "plans": {
                variant: {
                    seed: _digest([[task[name] for name in DECIDES] for task in of_seed["tasks"]])
                    for seed, of_seed in plan["seeds"].items()
                }
                for variant, plan in plans.get(stream, {}).items()
            },
            "cells": {
                variant: {
                    seed: _digest({task: cell["genotype"] for task, cell in by_task.items()})
                    for seed, by_task in of_seeds.items()
                }
                for variant, of_seeds in cells.get(stream, {}).items()
            },
        }
        for stream, by_seed in data.items()
    }


def compare(here: Record, there: Record) -> Comparison:
    """Compare all that both reports have."""
    ours, theirs = _learners(here), _learners(there)
    for stream, learner in ours:  # planned here and trained nowhere: of there only digests could tell
        if stream in there.results and not there.digests and learner not in here.results[stream]["learners"]:
            theirs[stream, learner] = None
    data = {
        stream: _match(*(record.digests.get(stream, {}).get("data", {}) for record in (here, there)))
        for stream in here.results
        if stream in there.results
    }
    return Comparison(
        data,
        tuple(_row(stream, learner, here, there) for stream, learner in ours if (stream, learner) in theirs),
        tuple(" ".join(one) for one in ours if one not in theirs),
        tuple(" ".join(one) for one in theirs if one not in ours),
    )


def table(comparison: Comparison) -> Table:
    """The comparison with a row for every learner, or for the stream alone where nothing was planned or trained."""
    rows = tuple(
        (
            literal(row.stream),
            row.learner,
            comparison.data[row.stream].words(),
            row.plan.words(),
            row.cells.words(),
            row.predictions.words(),
            *(_cell(row, metric) for metric in COMPARED),
        )
        for row in comparison.rows
    )
    columns = ("Stream", "Learner", "Data", "Plans", "Cells", "Predictions", *COMPARED)
    title = "Every stream and learner, with the seeds that are equal"
    return Table("comparison", title, columns, rows, 6, (TEST, NOT_RECORDED))


def lines(comparison: Comparison) -> list[str]:
    """The comparison for a terminal: a line a stream, one a number that differs, last the summary."""
    text = []
    for stream, data in comparison.data.items():
        rows = [row for row in comparison.rows if row.stream == stream]
        text.append(f"{stream}: {'; '.join(_counts([data], rows))}")
        text += [
            f"  {row.learner}: {number.words()}, {number.difference:+{FORMATS[number.metric]}}"
            + (
                f" where other test images allow {number.tolerance:{FORMATS[number.metric]}}"
                if number.tolerance
                else ""
            )
            for row in rows
            for number in row.numbers
            if not number.agrees
        ]
    return [*text, comparison.summary()]


def _counts(data: Iterable[Match], rows: Sequence[Row]) -> list[str]:
    """How many things of each kind are equal; last, of rows with numbers, how many of those agree."""
    kinds = {
        "data": data,
        "plans": (row.plan for row in rows),
        "cells": (row.cells for row in rows),
        "predictions": (row.predictions for row in rows),
    }
    totals = {kind: sum(matches, Match()).words() for kind, matches in kinds.items()}
    parts = [f"{kind} {words}" for kind, words in totals.items() if words]
    numbers = [number for row in rows for number in row.numbers]
    return [*parts, f"{sum(number.agrees for number in numbers)} of {len(numbers)} numbers agree"]


def _cell(row: Row, metric: str) -> str:
    """A number of the table."""
    for number in row.numbers:
        if number.metric == metric:
            digits = FORMATS[metric]
            if number.difference == 0:
                return f"{number.here:{digits}}\nequal"
            verdict = (
                f"{'within' if number.agrees else 'beyond'} {number.tolerance:{digits}}" if number.tolerance else ""
            )
            difference = f"{number.difference:+{digits}}, {verdict or 'differs'}"
            return f"{number.here:{digits}}\nthere {number.there:{digits}}\n{difference}"
    return ""


def _learners(record: Record) -> dict[tuple[str, str], None]:
    """Stream and learner of all that has a plan or was trained, in order."""
    return dict.fromkeys(
        (stream, learner)
        for stream, result in record.results.items()
        for learner in (*result["learners"], *record.digests.get(stream, {}).get("plans", {}))
    )


def _row(stream: str, learner: str, here: Record, there: Record) -> Row:
    ours, theirs = (record.results[stream]["learners"].get(learner, {}) for record in (here, there))
    plan, cells = (
        _match(*(record.digests.get(stream, {}).get(kind, {}).get(learner, {}) for record in (here, there)))
        for kind in ("plans", "cells")
    )
    predictions = _match(*({seed: entry.get("predictions_digest") for seed, entry in of.items()}
                           for of in (ours, theirs)))  # fmt: skip
    seeds = [seed for seed in ours if seed in theirs]
    numbers = [_number(metric, seeds, (stream, learner), here, there) for metric in COMPARED if seeds]
    return Row(stream, learner, plan, cells, predictions, tuple(numbers))


def _number(metric: str, seeds: Iterable[str], of: tuple[str, str], here: Record, there: Record) -> Number:
    means, errors = [], []
    for record in (here, there):
        result = record.results[of[0]]
        entries = {seed: result["learners"][of[1]][seed] for seed in seeds}
        means.append(fmean(float(METRICS[metric](entry)) for entry in entries.values()))
        errors.append(
            fmean(
                standard_error(metric, entry["accuracy"], [task["counts"]["test"] for task in result["tasks"][seed]])
                for seed, entry in entries.items()
            )
        )
    return Number(metric, means[0], means[1], Z * math.hypot(*errors))


def standard_error(metric: str, accuracy: Any, n_test: Any) -> float:
    """How far AP or AF spreads over draws of the test images; 0 for what does not depend on them.

    For the spread every accuracy counts as if one more image were right and one more wrong, so that a perfect one has
    some. Before and after are taken as independent, which they are not: AF spreads less.

    Args:
        accuracy: the matrix r_ij [T, T]. n_test: test images of every task [T].
    """
    if metric not in ("AP", "AF"):
        return 0.0
    matrix, n = np.array(accuracy, float), np.asarray(n_test, float)

    def variance(shares: np.ndarray) -> np.ndarray:
        shrunk = (shares * n + 1) / (n + 2)
        return shrunk * (1 - shrunk) / n

    of_tasks = variance(matrix[-1])
    if metric == "AF":
        before = variance(matrix.diagonal())
        unchanged = matrix[-1] == matrix.diagonal()  # nothing was forgotten, by the same answers as far as one can see
        of_tasks = np.where(unchanged, 0.0, of_tasks + before)
    return float(np.sqrt(of_tasks.sum()) / len(n))


def _match(here: Mapping[str, Any], there: Mapping[str, Any]) -> Match:
    """Digests by seed against others; None is not recorded."""
    common = [seed for seed, digest in here.items() if digest and there.get(seed)]
    return Match(sum(here[seed] == there[seed] for seed in common), len(common), len(here) - len(common))


def _digest(value: Any) -> str:
    return sha256_bytes(canonical_json(value).encode())
