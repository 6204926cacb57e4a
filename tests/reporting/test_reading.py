"""Readings: prose of an earlier report, that says of which."""

from __future__ import annotations

from pathlib import Path

import pytest

from par.reporting.page import Points, Text
from par.reporting.reading import parse_reading
from par.schema import ConfigError

READINGS = sorted((Path(__file__).parents[2] / "docs" / "readings").glob("*.md"))
MARKDOWN = """<!-- commit: abc1234 -->

One paragraph
on two lines.

- A point
  on two lines.
- Another - with a dash.
"""


def test_paragraphs_and_points():
    section = parse_reading(MARKDOWN, "x.md").section("abc1234def")
    points = Points(("A point on two lines.", "Another - with a dash."))
    assert section.items == (Text("One paragraph on two lines."), points)


def test_a_reading_of_another_commit_says_so():
    first = parse_reading(MARKDOWN, "x.md").section("fff0000").items[0]
    assert "commit abc1234" in first.text


def test_a_reading_without_commit_is_refused():
    with pytest.raises(ConfigError, match=r"x\.md must begin with"):
        parse_reading("words", "x.md")


@pytest.mark.parametrize("path", READINGS, ids=lambda path: path.stem)
def test_the_kept_readings_belong_to_presets_and_can_be_shown(path):
    assert (path.parents[2] / "presets" / path.name).with_suffix(".yaml").is_file()
    section = parse_reading(path.read_text(encoding="utf-8"), path.name).section("")
    assert len(section.items) == 3, "whose report, a paragraph, a list"
