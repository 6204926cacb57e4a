"""docs/sources.md: every citation leads to a section, every section is cited, and nothing else is cited."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from par.methods import METHODS
from tests.project import REPOSITORY

SOURCES = "docs/sources.md"
ANCHOR = re.compile(r'<a id="([^"]*)"></a>')
CITATION = re.compile(r"sources\.md#([\w-]+)")
# documents that a reader of the repository does not have
UNAVAILABLE = re.compile(
    r"\b(?:[Ff]acts(?:[ /:]|$)|[Dd]esign (?:section )?[0-9]|[Ii]ssue [0-9]|peers D[0-9]|ecosystem\.md)", re.M
)


@cache
def tracked_texts() -> dict[str, str]:
    """Text of every tracked or new file of the repository, by path; files that are not UTF-8 are no text."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("needs a git checkout, which tells the repository's files from those made in it")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    texts = {}
    for name in filter(None, names):
        try:
            texts[name] = (REPOSITORY / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    assert len(texts) > 100 and SOURCES in texts, "not a checkout of the repository"
    return texts


def places(pattern: re.Pattern, skip: tuple[str, ...] = ()) -> list[tuple[str, re.Match]]:
    """Every match in the tracked files, with ``file:line``."""
    return [
        (f"{name}:{text.count(chr(10), 0, match.start()) + 1}", match)
        for name, text in tracked_texts().items()
        if name not in skip
        for match in pattern.finditer(text)
    ]


def sections() -> dict[str, str]:
    """What stands below each anchor, up to the next one."""
    parts = ANCHOR.split(tracked_texts()[SOURCES])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_citation_leads_to_a_section():
    anchors = ANCHOR.findall(tracked_texts()[SOURCES])
    assert len(anchors) == len(set(anchors)), "an anchor stands twice"
    cited = places(CITATION, skip=(SOURCES, f"tests/{Path(__file__).name}"))
    assert len(cited) > 100
    assert [f"{place} {match[1]}" for place, match in cited if match[1] not in anchors] == []
    inside = re.findall(r"\]\(#([\w-]+)\)", tracked_texts()[SOURCES])
    assert set(inside) <= set(anchors)


def test_every_section_is_cited_and_says_something():
    cited = {match[1] for _, match in places(CITATION, skip=(SOURCES,))}
    assert set(sections()) <= cited
    for anchor, text in sections().items():
        heading, *body = text.strip().splitlines()
        assert re.match(r"#{3,4} \w", heading), anchor
        assert len(" ".join(body)) > 100, f"{anchor} explains nothing"


def test_files_that_the_document_names_exist():
    names = re.findall(r"`((?:par/|benchmarks/|test_)[\w/]+\.(?:py|yaml))`", tracked_texts()[SOURCES])
    assert names
    for name in names:
        assert any(f"/{path}".endswith(f"/{name}") for path in tracked_texts()), name


def test_no_citation_of_what_a_reader_does_not_have():
    assert [f"{place} {match[0]}" for place, match in places(UNAVAILABLE)] == []


@pytest.mark.parametrize("method", METHODS)
def test_the_first_line_of_a_method_cites_its_paper(method):
    path = importlib.util.find_spec(METHODS[method].partition(":")[0]).origin
    first = (ast.get_docstring(ast.parse(Path(path).read_text())) or "no docstring").splitlines()[0]
    anchor = method.replace("_", "-")
    assert re.search(rf"\([^()]*\b(19|20)\d\d, sources\.md#{anchor}\)\.$", first), first
