"""docs/claims.md and docs/agreement.md: every number that is quoted stands in what it is quoted from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from par.methods import METHODS
from par.reporting.published import load_published
from tests.project import REPOSITORY

CLAIMS = REPOSITORY / "docs" / "claims.md"
QUOTED = re.compile(r"\[([^\[\]]*\d[^\[\]]*)\]\[(\w+)\]")  # [.549][cifar]
TARGET = re.compile(r"^\[(\w+)\]: (\S+)$", re.M)
REPORT = re.compile(r"^\| \[(\w+)\] \| `(\S+)` \| (\w+) \|", re.M)


def targets() -> dict[str, Path]:
    """The files that the names of links lead to."""
    return {name: (CLAIMS.parent / path).resolve() for name, path in TARGET.findall(CLAIMS.read_text())}


def text_of(path: Path) -> str:
    """A document, or all texts of the report that it is the front page of."""
    in_report = path.parent.parent.name == "reports"
    files = sorted(path.parent.rglob("*.md")) if in_report else [path]
    return "\n".join(file.read_text() for file in files)


def stands_in(quoted: str, text: str) -> bool:
    """Whether every number of ``quoted`` is in the text, with or without the 0 before its point.

    A zero at the end may be missing there, as in YAML.
    """

    def pattern(number: str) -> str:
        sign, whole, rest = re.fullmatch(r"(-?)([\d,]*)(.*)", number).groups()
        whole = "0?" if whole in ("", "0") and rest else re.escape(whole)
        rest = re.sub(r"(0+)$", lambda zeros: "0?" * len(zeros[1]), re.escape(rest)) if rest else ""
        return rf"(?<![\d.]){sign}{whole}{rest}(?![\d]|\.\d)"

    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+", quoted)
    return bool(numbers) and all(re.search(pattern(number), text) for number in numbers)


def test_every_number_that_is_quoted_stands_where_it_leads():
    quotations = QUOTED.findall(CLAIMS.read_text())
    assert len(quotations) > 100
    texts = {name: text_of(path) for name, path in targets().items()}
    assert [f"[{number}][{name}]" for number, name in quotations if not stands_in(number, texts[name])] == []


@pytest.mark.parametrize(
    ("quoted", "text", "found"),
    [
        (".549", "| 0.549 |", True),
        ("-.145", "[-0.145]", True),
        (".549", "0.5490", False),
        (".5", "0.54", False),
        ("1.000", "at 1.000)", True),
        ("6.070", "M: 6.07}", True),
        ("6.070", "M: 6.7}", False),
        ("8", "(8 groups)", True),
        ("8", "18 groups", False),
        ("1,527", "| 1,527 |", True),
        ("0.009 to 0.704", "(0.009 to 0.704)", True),
        ("0.009 to 0.704", "0.009 to 0.705", False),
    ],
)
def test_how_a_number_is_looked_up(quoted, text, found):
    assert stands_in(quoted, text) == found


def test_reports_are_named_with_their_commits():
    reports = REPORT.findall(CLAIMS.read_text())
    assert {name for name, _, _ in reports} == {
        path.name for path in (REPOSITORY / "reports").iterdir() if path.is_dir()
    }
    for name, preset, commit in reports:
        assert (REPOSITORY / preset).is_file()
        assert f"| Commit | {commit}" in targets()[name].read_text(), name


def test_every_table_of_the_paper_has_its_claims():
    text = CLAIMS.read_text()
    for table in load_published().tables:
        if table.number is not None:
            assert f"| Table {table.number}: " in text, table.title


def test_every_method_has_its_row_of_agreement():
    names = load_published().methods
    section = (REPOSITORY / "docs/agreement.md").read_text().partition("## All methods")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ", section, re.M)
    assert sorted(rows[1:]) == sorted(names[method] for method in METHODS)
