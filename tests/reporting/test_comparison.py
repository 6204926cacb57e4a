"""A report beside another one: what counts as equal, and which numbers agree."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from par.reporting.comparison import Match, Record, Reference, compare, lines, standard_error, table
from par.reporting.provenance import bits, bits_of_both
from par.reporting.report import render
from tests.reporting.cases import demo_config, inputs

BITS = {
    "numerics": "portable",
    "cpu_capability": "AVX2",
    "switches": {"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"},
    "torch": "2.14.1",
    "precision": "float32",
    "threads": 1,
}


def record() -> Record:
    """That of the report of :func:`tests.reporting.cases.inputs`, with digests of predictions."""
    found = copy.deepcopy(inputs().record)
    for learner, by_seed in found.results["demo_minus"]["learners"].items():
        for seed, entry in by_seed.items():
            entry["predictions_digest"] = f"{learner}/{seed}"
    return found


def learner(of: Record, name: str) -> dict:
    return of.results["demo_minus"]["learners"][name]


def test_a_report_agrees_with_itself():
    compared = compare(record(), record())
    assert compared.verdict == "agrees" and not compared.differs and compared.data["demo_minus"] == Match(2, 2, 0)
    assert compared.summary() == (
        "agrees: data 2 of 2 equal; plans 4 of 4 equal; cells 2 of 2 equal; predictions 14 of 14 equal; "
        "21 of 21 numbers agree."
    )


def test_a_plan_that_decides_otherwise_differs_and_its_distance_does_not_count():
    given = inputs()
    plans = copy.deepcopy(given.plans)
    tasks = plans["demo_minus"]["par"]["seeds"]["1"]["tasks"]
    tasks[1]["distance"], tasks[1]["reason"] = 0.913001, "another last digit"
    assert not compare(replace(given, plans=plans).record, given.record).differs
    tasks[1]["group"] = 0  # both seeds share this task
    compared = compare(replace(given, plans=plans).record, given.record)
    assert compared.differs and compared.verdict == "differs" and "plans 2 of 4 equal" in compared.summary()


def test_other_data_differ():
    other = record()
    other.digests["demo_minus"]["data"]["1"] = "cc" * 32
    compared = compare(record(), other)
    assert compared.differs and compared.data["demo_minus"] == Match(1, 2, 0)


def test_other_cells_and_predictions_are_counted_and_make_no_difference():
    other = record()
    other.digests["demo_minus"]["cells"]["par"]["0"] = "cc"
    learner(other, "finetune")["1"]["predictions_digest"] = "other"
    compared = compare(record(), other)
    assert compared.verdict == "agrees"
    assert "cells 1 of 2 equal; predictions 13 of 14 equal" in compared.summary()


def test_a_report_without_digests_is_no_difference():
    old = Record(inputs().results, {})
    compared = compare(record(), old)
    assert not compared.differs and compared.verdict == "agrees as far as is recorded there"
    assert "plans not recorded there" in compared.summary() and "predictions not recorded there" in compared.summary()
    assert "only" not in compared.summary()


def test_numbers_agree_as_far_as_test_images_allow():
    near, far = record(), record()
    for of, shift in ((near, 0.05), (far, 0.2)):
        for entry in learner(of, "finetune").values():
            entry["ap"] += shift
    assert compare(record(), near).verdict == "agrees"
    compared = compare(record(), far)
    assert compared.verdict == "agrees but for some numbers" and not compared.differs
    ((row, number),) = compared.differing()
    assert (row.learner, number.metric, number.difference) == ("finetune", "AP", pytest.approx(-0.2))
    assert 0.05 < number.tolerance < 0.2
    assert "20 of 21 numbers agree, 1 differ: demo_minus finetune AP" in compared.summary()
    text = lines(compared)
    assert text[0].startswith("demo_minus: data 2 of 2 equal; plans 4 of 4 equal") and text[-1] == compared.summary()
    assert text[1].startswith("  finetune: AP ") and "-0.200 where other test images allow 0.1" in text[1]


def test_a_network_of_another_size_differs():
    other = record()
    learner(other, "par")["0"]["n_params"] += 1
    ((row, number),) = compare(record(), other).differing()
    assert (row.learner, number.metric, number.tolerance) == ("par", "M", 0.0)


def test_only_what_both_have_is_compared_and_the_rest_is_named():
    here, there = record(), record()
    del here.results["demo_minus"]["learners"]["finetune"], learner(there, "par")["1"]
    there.results["other"] = {"learners": {"par": {}}}
    compared = compare(here, there)
    assert compared.here_only == () and compared.there_only == ("demo_minus finetune", "other par")
    row = next(row for row in compared.rows if row.learner == "par")
    assert row.predictions == Match(1, 1, 1)
    assert {n.metric: n.difference for n in row.numbers} == {"AP": 0.0, "AF": 0.0, "M": 0.0}, "seed 0 with seed 0"
    assert "only there: demo_minus finetune, other par" in compared.summary()


def test_nothing_in_common():
    compared = compare(record(), Record({"other": {"learners": {"par": {}}}}, {}))
    assert compared.rows == () and compared.verdict == "nothing to compare"


def test_plans_are_compared_where_nothing_was_trained():
    here, there = record(), record()
    for of in (here, there):
        of.results["demo_minus"]["learners"].clear()
    compared = compare(here, there)
    assert compared.summary() == (
        "agrees: data 2 of 2 equal; plans 4 of 4 equal; cells 2 of 2 equal; 0 of 0 numbers agree."
    )
    assert compare(here, Record(there.results, {})).here_only == ()


def test_the_standard_error_is_that_of_drawn_test_images():
    generator, n = np.random.default_rng(0), np.array([60, 200, 40])
    last, first = np.array([0.5, 0.8, 0.9]), np.array([0.7, 0.9, 0.9])
    matrix = np.diag(first)
    matrix[-1] = last
    drawn = generator.binomial(n, last, (20_000, 3)) / n
    assert standard_error("AP", matrix, n) == pytest.approx(drawn.mean(axis=1).std(), rel=0.03)
    before = generator.binomial(n, first, (20_000, 3)) / n
    forgotten = (drawn - before)[:, :2].sum(axis=1) / 3
    assert standard_error("AF", matrix, n) == pytest.approx(forgotten.std(), rel=0.03)
    assert standard_error("M", matrix, n) == 0.0


def test_bits_are_told_in_words():
    known, unknown = {"hardware": {"bits": BITS}}, {"hardware": {"device": "a machine"}}
    alike = "torch 2.14.1 with kernels for AVX2, float32, 1 thread a step, set in the environment:"
    assert bits({"a": known, "b": known}) == f"numerics portable, {alike} OMP_NUM_THREADS=1"
    by_hand = {"hardware": {"bits": BITS | {"numerics": "native"}}}
    assert bits({"a": by_hand}) == f"numerics native, {alike} MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1"
    assert bits_of_both({"a": unknown}, {"b": unknown}) == ("Both: not recorded.",)
    assert [line[:7] for line in bits_of_both({"a": known}, {"a": by_hand})] == ["Here: n", "There: "]
    assert bits({"a": unknown}) == "not recorded" and bits({}) == "nothing was run"


def test_the_report_shows_the_comparison(tmp_path):
    reference = Reference("the report committed at abc1234", record())
    render(tmp_path, demo_config(), replace(inputs(), reference=reference))
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "## Does this run agree with the committed report?" in text
    assert "Compared with the report committed at abc1234: agrees: data 2 of 2 equal" in text
    assert len(table(compare(record(), record())).rows) == len(record().results["demo_minus"]["learners"])
    assert "| demo\\_minus | finetune |" in (tmp_path / "tables/comparison.md").read_text(encoding="utf-8")
