"""The transcription of the paper's numbers."""

from __future__ import annotations

from collections import Counter

import pytest

from par.methods import METHODS
from par.reporting.published import load_published
from par.schema import NAME_PATTERN, ConfigError

MINIMAL = """
methods: {par: PAR, ewc: EWC}
streams: {mixed: Mixed}
tables:
  - name: mixed
    number: 2
    title: Mixed
    rows:
"""


@pytest.fixture(scope="module")
def published():
    return load_published()


def test_every_table_is_complete(published):
    """Counts of printed numbers, by hand from the paper (sources.md#par-numbers)."""
    assert Counter(value.table for value in published.values) == {
        "ctrl": 2 * (11 * 6 - 3) - 1,  # three rows without S_long, one AP without its AF
        "mixed": 4,
        "classic": 12 + 11 + 9 + 8,
        "size": 2 * (7 + 5),
        "ablation": 7 * 4,
        "gpm": 5 * 2,  # of the GPM paper
    }


@pytest.mark.parametrize(
    "stream, method, metric, value",
    [
        ("ctrl_minus", "par", "AP", 0.706),
        ("ctrl_out", "er", "AF", -0.07),
        ("ctrl_long", "lmc", "AP", 0.639),
        ("mixed", "cat", "AP", 0.6831),
        ("miniimagenet_20", "mas", "AF", -0.238),
        ("cifar100_10", "pnn", "M", 12.422),
        ("ctrl_long", "mntdp_d", "M", 25.508),
        ("cifar100_10", "fine_coarse", "hours", 1.2),
    ],
)
def test_samples_of_the_transcription(published, stream, method, metric, value):
    assert published.find(stream, method, metric).value == value


def test_the_paper_leaves_cells_empty(published):
    assert published.find("ctrl_long", "er", "AP") is None
    assert published.find("miniimagenet_20", "learn_to_grow", "AP") is None
    assert published.methods_on("cifar10_5") == []


def test_finetune_on_cifar100_10_is_printed_twice(published):
    wanted = ("finetune", "cifar100_10", "AP")
    printed = [value for value in published.values if (value.method, value.stream, value.metric) == wanted]
    assert [(value.value, value.superseded) for value in printed] == [(0.28, False), (0.18, True)]
    assert published.find("cifar100_10", "finetune", "AP").value == 0.28
    assert all(value.marks for value in printed)


def test_marks_say_what_is_not_comparable(published):
    for method, streams in {"hat": ("ctrl_minus", "ctrl_long"), "gpm": ("cifar100_10", "miniimagenet_20")}.items():
        for stream in streams:
            assert "AlexNet backbone" in published.find(stream, method, "AP").marks
    quoted = {value.method for value in published.values if value.table == "ctrl" and not value.marks}
    assert quoted == {"par"}, "every row of CTrL but PAR's is quoted"
    for value in published.values:
        if (value.table, value.metric) == ("ablation", "AF"):
            assert "LaTeX" in value.marks[0]


def test_names_are_those_of_the_project(published):
    assert set(METHODS) <= set(published.methods)
    assert all(NAME_PATTERN.fullmatch(name) for name in [*published.methods, *published.streams])


@pytest.mark.parametrize(
    "rows, message",
    [
        ("- {method: sgd, values: {mixed: {AP: 0.5}}}", "method 'sgd' is unknown; known are par, ewc"),
        ("- {method: par, values: {mixd: {AP: 0.5}}}", "stream 'mixd' is unknown"),
        ("- {method: par, values: {mixed: {acc: 0.5}}}", "metric 'acc' is unknown"),
        ("- {method: par, values: {mixed: {AP: 71.2}}}", "mixed.par.mixed.AP = 71.2 is out of range"),
        ("- {method: par, values: {mixed: {AP: high}}}", "mixed.par.mixed.AP.value = 'high' has the wrong type"),
        ("- {method: par, valeus: {}}", "valeus"),
        (
            "- {method: par, values: {mixed: {AP: 0.5}}}\n      - {method: par, values: {mixed: {AP: 0.6}}}",
            "AP of par on mixed is 0.5 in table mixed and 0.6 in table mixed; mark one of them superseded",
        ),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, rows, message):
    path = tmp_path / "published.yaml"
    path.write_text(f"{MINIMAL}      {rows}\n")
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        load_published(path)
