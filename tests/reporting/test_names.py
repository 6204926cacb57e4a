"""Names of tasks and classes that mean something to TeX, Markdown or HTML are shown as they are, everywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from par.reporting import figures, tables
from par.reporting.page import rich
from par.reporting.report import render
from par.reporting.tables import latex_text, literal
from par.streams.findings import Finding
from par.text import listing, one_line
from tests.reporting.cases import demo_config, inputs

SPECIAL = r"a$b_c%d#e&f{g^h~i\j|k<b>l</b>"
NAMES = [
    SPECIAL,
    "two\nlines *and* `code` $x_1$ <script>alert(1)</script>",
    r"\frac{ $ $$ \$ &amp; [l](u) ![i](u) " + "long " * 30,
]
SHOWN = [one_line(name, tables.NAME_WIDTH) for name in NAMES]
CLASSES = ["$cost$", "under_score", "x|y", r"\alpha", "<i>", "#1", "50%", "{}", "^~", "a\nb"]


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A whole report of a stream whose tasks and classes have such names."""
    folder, given = tmp_path_factory.mktemp("report"), inputs()
    result = given.results["demo_minus"]
    named = [
        {**task, "name": name, "source": SPECIAL, "class_names": CLASSES}
        for task, name in zip(result["tasks"]["0"], NAMES, strict=True)
    ]
    plans = {
        variant: {**plan, "seeds": {seed: _renamed(of_seed) for seed, of_seed in plan["seeds"].items()}}
        for variant, plan in given.plans["demo_minus"].items()
    }
    found = (Finding("left aside", f"source {SPECIAL}", f"3 files not read: {SPECIAL}", 3, f"train/{SPECIAL}"),)
    given = replace(
        given,
        results={"demo_minus": {**result, "tasks": dict.fromkeys(result["tasks"], named)}},
        plans={"demo_minus": plans},
        findings={"demo_minus": dict.fromkeys(result["tasks"], found)},
    )
    render(folder, demo_config(), given)
    return folder


def _renamed(plan: dict) -> dict:
    return {"tasks": [{**task, "name": name} for task, name in zip(plan["tasks"], NAMES, strict=True)]}


class Page(HTMLParser):
    """The words of every cell of every table, and the tags of the page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def test_the_page_shows_names_as_they_are(report):
    page = Page((report / "index.html").read_text(encoding="utf-8"))
    cells = [cell.strip() for cell in page.cells]
    for name in SHOWN:
        assert name in cells
    assert f"10: {listing(CLASSES, 30)}" in cells and SPECIAL in cells
    assert f"3 files not read: {SPECIAL} (such as train/{SPECIAL})" in cells
    assert page.tags.count("script") == 1 and not {"b", "script alert"} & set(page.tags)


def markdown_cells(text: str) -> list[str]:
    """Cells of GitHub tables as GitHub shows them where nothing but backslashes and line breaks is markup."""
    rows = [line[2:-2] for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    cells = [cell.replace(r"\|", "|") for row in rows for cell in re.split(r"(?<!\\) \| ", row)]
    return [re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell) for cell in cells]


def test_markdown_shows_names_as_they_are(report):
    for path in (report / "README.md", report / "tables" / "demo_minus_plan.md"):
        text = path.read_text(encoding="utf-8")
        cells = markdown_cells(text)
        for name in SHOWN:
            assert name in cells, path
        lines = [line for line in text.splitlines() if "alert(1)" in line]
        assert lines and not any(re.search(r"(?<!\\)[<`$*]", line) for line in lines), "no markup of a name is left"


def test_figures_show_names_as_they_are(report):
    for kind in ("distance", "groups", "accuracy", "experts"):
        tree = ElementTree.parse(report / "figures" / f"demo_minus_{kind}.svg")
        assert tree.getroot().tag.endswith("svg") and (report / "figures" / f"demo_minus_{kind}.png").stat().st_size
    decisions = inputs().plans["demo_minus"]["par"]["seeds"]["0"]
    figure = figures.distance_heatmap(np.zeros((3, 3)), _renamed(decisions)["tasks"], 0.5, 0.75, "t")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[0] == f"0  {SPECIAL}" and all(len(label) <= 3 + figures.NAME_WIDTH for label in labels)
    assert labels[1].startswith("1  two lines *and* `code` $x_1$")
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())


def test_results_keep_names_as_they_are(report):
    from par.files import read_json

    tasks = read_json(report / "results" / "demo_minus.json")["tasks"]["0"]
    assert [task["name"] for task in tasks] == NAMES and tasks[0]["class_names"] == CLASSES


TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "$": r"\$", "_": r"\_", "%": r"\%", "#": r"\#", "&": r"\&",
    "{": r"\{", "}": r"\}",
}  # fmt: skip


def test_latex_of_names():
    for name in (*NAMES, *CLASSES):
        expected = "".join(TEX.get(letter, letter) for letter in one_line(name, tables.NAME_WIDTH))
        assert latex_text(literal(name)) == expected
    table = tables.Table("t", "T", ("Name", "n"), ((literal(SPECIAL), "1"),), 1)
    assert latex_text(literal(SPECIAL)) + r" & 1 \\" in table.latex()
    assert latex_text(r"\$5 of $r_{ij}$ and `x_y`") == r"\$5 of $r_{ij}$ and `x\_y`"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
def test_latex_sets_names(tmp_path):
    table = tables.Table("t", "T", ("Name",), tuple((literal(name),) for name in (*NAMES, *CLASSES)), 1).latex()
    text = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}" + table + "\\end{document}"
    (tmp_path / "t.tex").write_text(text.replace("…", "..."), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("text", [*NAMES, *CLASSES, "`a` $b$", r"\\", r"\_", "ends with \\"])
def test_a_literal_survives_html(text):
    import html

    assert html.unescape(str(rich(literal(text, None)))) == one_line(text)


def test_one_line_and_listing():
    assert one_line(" a\n\tb\x00c\u2028d ") == "a b c d"
    assert one_line("abcdef", 4) == "abc…" and one_line("abcd", 4) == "abcd"
    assert listing(["a", "b\nc"]) == "a, b c" and listing(list("abcdefg"), 2) == "a, b and 5 more"
