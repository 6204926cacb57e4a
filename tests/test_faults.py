"""Of the faults of `make faults` one of each kind, with other draws than those of docs/reliability.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import faults
from tests.project import made_once

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENT = REPOSITORY / "docs" / "reliability.md"
# Stage, group and worker are killed by two signals each, of the four that `make faults` sends; of servers that answer
# with something else than MLflow does, one.
LEFT_OUT = "SIGINT to the stage", "SIGHUP to the stage", "SIGTERM to the group", "SIGHUP to the group"
LEFT_OUT += "SIGTERM to the worker", "SIGINT to the worker"
LEFT_OUT += "tracking server: 401", "tracking server: 429", "tracking server: html", "tracking server: no driver"
PARTS = 3  # for processes of tests that run side by side: as one test it was the last to end, by minutes


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_one_fault_of_each_kind_breaks_nothing(tmp_path_factory, part):
    home = made_once(tmp_path_factory, "faults", faults.learn_truth)
    kinds = [kind for kind in faults.KINDS if not kind.fault.startswith(LEFT_OUT)][part::PARTS]
    tallies = faults.cause_faults(home, share=0.0, seed=1, kinds=kinds)
    assert sum(tally.tried for tally in tallies) == len(kinds) >= 20 // PARTS
    for tally in tallies:
        tally.longest_wait = 0.0  # `make faults` judges it; other tests share the processor with this one
    assert all(tally.is_kept for tally in tallies), faults.table(tallies)


def test_the_table_of_the_documentation_is_of_these_faults_and_no_promise_was_broken():
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = [
        line.split(" | ")
        for line in text.split("<!-- faults -->")[1].split("<!-- end")[0].splitlines()
        if line.startswith("| ")
    ]
    named = {row[0].removeprefix("| ") for row in rows[1:]}
    assert named == {kind.fault for kind in faults.KINDS} | {"**all**"}
    assert all(re.match(r"(yes|(\d+) of \2) \|$", row[-1]) for row in rows[1:]), "a promise was not kept"


def test_the_tests_that_the_documentation_names_exist():
    named = set(re.findall(r"`(tests/[^`]+)`", DOCUMENT.read_text(encoding="utf-8")))
    assert named and all((REPOSITORY / name).is_file() for name in named)
