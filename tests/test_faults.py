"""Of the faults of `make faults` one of a kind, with other draws than those of docs/reliability.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import faults
from tests.project import made_once

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENT = REPOSITORY / "docs" / "reliability.md"
# in every run; the others with `make test-exhaustive`, and many of each kind with `make faults`
EVERY_RUN = (
    "SIGKILL to the stage while it trains",
    "SIGKILL to the worker while it trains",
    "an entry of the store: a bit flipped",
    "an odd value or key in params.yaml",
)
# in parts for processes of tests that run side by side: as one test it was the last to end, by minutes
CHOSEN, OTHERS = ([kind for kind in faults.KINDS if (kind.fault in EVERY_RUN) is chosen] for chosen in (True, False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds",
    [CHOSEN[::2], CHOSEN[1::2], *(pytest.param(OTHERS[i::3], marks=pytest.mark.exhaustive) for i in range(3))],
    ids=lambda kinds: f"{len(kinds)} kinds",
)
def test_one_fault_of_each_kind_breaks_nothing(tmp_path_factory, kinds):
    home = made_once(tmp_path_factory, "faults", faults.learn_truth)
    tallies = faults.cause_faults(home, share=0.0, seed=1, kinds=kinds)
    assert sum(tally.tried for tally in tallies) == len(kinds) > 0
    for tally in tallies:
        tally.longest_wait = 0.0  # `make faults` judges it; other tests share the processor with this one
    assert all(tally.is_kept for tally in tallies), faults.table(tallies)


def test_what_every_run_causes_is_there():
    assert len(CHOSEN) == len(EVERY_RUN)


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
