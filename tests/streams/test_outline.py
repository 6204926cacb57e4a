"""Sizes of tasks before a stream is built, against those that it has then."""

from __future__ import annotations

import pytest

from par.streams import build_stream, definition
from par.streams.outline import TaskOutline, outline

EVERYTHING = """
image_size: 8
sources:
  digits: {valid_pool: 40}
tasks:
  - {source: digits, n_classes: 3, train: 7, valid: 3, test: 2}
  - {source: digits, classes: ["4", "7"], train: 5, valid: 3, test: 2}
class_splits:
  - {source: digits, classes_per_task: 4, n_tasks: 2, train: 6, valid: 3, test: 2}
  - {source: digits, groups: {low: ["0", "1", "2"], high: ["8", "9"]}, train: 4, valid: 3, test: 2}
"""


def test_an_outline_has_the_sizes_of_the_stream(tmp_path, monkeypatch):
    (tmp_path / "tiny.yaml").write_text(EVERYTHING)
    monkeypatch.setattr(definition, "DEFINITIONS", tmp_path)
    tasks = build_stream("tiny", 0, tmp_path, tmp_path / "out").tasks
    assert outline("tiny") == [TaskOutline(task.counts["train"], max(task.image_size)) for task in tasks]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ("ctrl_minus", [4000, 400, 400, 400, 400, 400]),
        ("cifar10_5", [9000] * 5),
        ("cifar100_10", [4500] * 10),
        ("cifar100_coarse", [2250] * 20),
        ("cifar100_gpm", [4750] * 10),
        ("miniimagenet_20", [2400] * 20),
    ],
)
def test_outlines_of_benchmarks(stream, expected):
    assert [task.n_train for task in outline(stream)] == expected


def test_random_tasks_have_the_expected_number_of_large_ones():
    sizes = [task.n_train for task in outline("ctrl_long")]
    assert len(sizes) == 100 and sum(size > 25 for size in sizes) == 24  # 0.5 and 0.25 of 33
    assert {size for size in sizes if size > 25} == {5000, 2250} and set(sizes[66:]) == {25}


def test_what_no_publisher_says_is_unknown(tmp_path, monkeypatch):
    (tmp_path / "tiny.yaml").write_text("image_size: 8\ntasks:\n  - {source: pets, train: 5}\n")
    monkeypatch.setattr(definition, "DEFINITIONS", tmp_path)
    assert outline("tiny") is None
    (tmp_path / "tiny.yaml").write_text("image_size: 8\ntasks:\n  - {source: pets, n_classes: 3, train: 5}\n")
    assert outline("tiny") == [TaskOutline(15, 8)]
