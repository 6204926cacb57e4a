"""Scores, tables and the report, from made-up results."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pandas as pd
import pytest

from par.config import Config
from par.reporting import metrics, tables
from par.reporting.published import Value, load_published
from par.reporting.report import render, score_matrix

PROVENANCE = {"commit": "abc1234", "dirty": True, "python": "3.11.7", "torch": "2.14.1"}
TASKS = ["digits", "textures", "digits again"]
METHODS = {"finetune": {}, "independent": {}, "ewc": {"recipe": {"epochs": 9}}, "par": {}}
CHAINS = {"finetune": [[0, 1, 2]], "independent": [[0], [1], [2]], "par": [[0, 2], [1]]}


@pytest.fixture(scope="module")
def published():
    return load_published()


@pytest.fixture(scope="module")
def config() -> Config:
    return Config("demo", ("demo_minus", "cifar100_10"), (0, 1), METHODS, recipes={}, variants={"fixed": {}})


def result(stream: str, seeds=(0, 1)) -> dict:
    """What ``evaluate`` writes for three methods whose predictions are right at random."""
    labels = [np.arange(60) % 10] * 3
    learners = {}
    for position, (learner, chains) in enumerate(CHAINS.items()):
        learners[learner] = {}
        for seed in seeds:
            generator = np.random.default_rng([position, seed])
            predictions = {
                f"{i}/{j}": np.where(generator.random(60) < 0.5 + 0.1 * position, labels[j], 11).astype(np.uint8)
                for chain in chains
                for i in chain
                for j in chain
                if j <= i
            }
            costs = dict.fromkeys(metrics.COSTS, 0) | {"n_params": 607_050 * len(chains), "n_experts": len(chains)}
            costs |= {"seconds": 3_000.0, "seconds_search": 600.0, "epochs": 12}
            learners[learner][str(seed)] = metrics.evaluate_learner(
                predictions, labels, chains, costs, (stream, learner, seed)
            )
    tasks = [{"name": name, "source": "digits", "n_classes": 10, "counts": {"test": 60}} for name in TASKS]
    return {
        "stream": stream,
        "tasks": {str(seed): tasks for seed in seeds},
        "hardware": {"device": "2 cores of a test machine"},
        "learners": learners,
    }


def decision(task, kind, group, nearest, distance, cell_from, head_only=False) -> dict:
    return {
        "task": task,
        "name": TASKS[task],
        "decision": kind,
        "group": group,
        "nearest_group": nearest,
        "distance": distance,
        "cell_from": cell_from,
        "head_only": head_only,
        "reason": "nothing is near" if kind == "search" else "near group 0",
    }


def plan(last_of_seed_1="join") -> dict:
    first = [decision(0, "search", 0, None, None, 0), decision(1, "search", 1, 0, 0.913, 1)]
    joins = decision(2, "join", 0, 0, 0.21, 0, head_only=True)
    other = joins if last_of_seed_1 == "join" else decision(2, "reuse_cell", 2, 0, 0.61, 0)
    return {
        "stream": "demo_minus",
        "extractor": {"name": "resnet18", "digest": "0123456789abcdef" * 4},
        "seeds": {"0": {"tasks": [*first, joins]}, "1": {"tasks": [*first, other]}},
    }


def distances() -> pd.DataFrame:
    pairs = [(1, 0, 0.913), (2, 0, 0.21), (2, 1, 0.8)]
    rows = [
        {"seed": seed, "estimator": name, "split": "valid", "task": i, "other": j, "distance": s, "score": s + shift}
        for seed in (0, 1)
        for name, shift in (("paper", 0.0), ("corrected", -0.1))
        for i, j, s in pairs
    ]
    return pd.DataFrame(rows)


def a_score(values, printed, metric="AP") -> tables.Score:
    value = None if printed is None else Value("ctrl", "par", "ctrl_minus", metric, printed, (), False)
    return tables.Score("ctrl_minus", "par", metric, values, None, value)


@pytest.mark.parametrize(
    "values, printed, verdict",
    [
        ((0.70, 0.72), 0.71, "reproduced"),
        ((0.72,), 0.71, "reproduced"),  # exactly one point
        ((0.721,), 0.71, "above"),
        ((0.699,), 0.71, "below"),
        ((0.60, 0.70), 0.78, "reproduced"),  # 2 std are 14 points
        ((0.60, 0.61), 0.78, "below"),
        ((), 0.71, "not run"),
        ((0.71,), None, ""),
    ],
)
def test_verdict(values, printed, verdict):
    assert a_score(values, printed).verdict == verdict


def test_only_accuracies_are_judged():
    score = a_score((1.401,), 1.4, "M")
    assert score.verdict == "" and score.difference == pytest.approx(0.001)


def test_score_as_text():
    assert a_score((0.70, 0.72), None).text() == "0.710 ± 0.014"
    assert a_score((0.7064,), None).text() == "0.706"
    assert a_score((), None).text() == "-"
    assert a_score((-0.0004,), None, "AF").text() == "0.000"
    assert a_score((1234.6, 1234.6), None, "seconds").text() == "1,235"


def test_scores_average_seeds_and_intervals(config, published):
    content = result("cifar100_10")
    score = tables.stream_scores(config, "cifar100_10", content, published)["par"]["AP"]
    entries = content["learners"]["par"].values()
    assert score.mean == pytest.approx(np.mean([entry["ap"] for entry in entries]))
    assert score.std == pytest.approx(np.std([entry["ap"] for entry in entries], ddof=1))
    assert score.interval[0] == pytest.approx(np.mean([entry["ap_interval"][0] for entry in entries]))
    assert score.published.value == 0.853


def test_stream_table_of_a_published_stream(config, published):
    scores = tables.stream_scores(config, "cifar100_10", result("cifar100_10"), published)
    table = tables.stream_table(config, "cifar100_10", scores, published)
    rows = {row[0]: dict(zip(table.columns, row)) for row in table.rows}
    assert list(rows)[:4] == ["Finetune", "Independent", "EWC", "PAR"], "the configuration's methods come first"
    assert set(rows) >= {"GPM", "MNTDP-D", "Learn to Grow"}, "what only the paper has is listed too"
    assert rows["Finetune"]["AP, paper"] == "0.280 [a]" and rows["PAR"]["M, paper"] == "1.400"
    assert table.notes[0].startswith("[a] the size table prints .180")
    assert rows["PAR"]["Verdict"] in ("reproduced", "above", "below")
    assert rows["EWC"]["AP"] == rows["EWC"]["Verdict"] == "not run" and rows["EWC"]["AP, paper"] == "0.608"
    ours = float(rows["PAR"]["AP"].split(" ± ")[0])
    assert float(rows["PAR"]["Difference"]) == pytest.approx(ours - 0.853, abs=0.0011)
    letter = next(note[:3] for note in table.notes if "AlexNet backbone" in note)
    assert letter[1] in rows["GPM"]["AP, paper"]


def test_stream_table_without_published_values(config, published):
    scores = tables.stream_scores(config, "demo_minus", result("demo_minus"), published)
    table = tables.stream_table(config, "demo_minus", scores, published)
    assert not any("paper" in column or column == "Verdict" for column in table.columns)
    assert [row[0] for row in table.rows] == ["Finetune", "Independent", "EWC", "PAR"]
    assert "DEMO" in table.title


def test_missing_seeds_are_said(config, published):
    scores = tables.stream_scores(config, "demo_minus", result("demo_minus", seeds=(0,)), published)
    table = tables.stream_table(config, "demo_minus", scores, published)
    assert table.notes == ("[a] 1 of 2 seeds.",) and table.rows[0][0] == "Finetune [a]"


def test_markdown_and_latex_of_a_table():
    rows, notes = (("x|y", "1 ± 2"), ("{z}", "#3")), ("AF $= r_{ij}$, 5%.",)
    table = tables.Table("t_1", "50% & more", ("A_b", "n"), rows, 1, notes)
    lines = table.markdown().splitlines()
    assert lines[:4] == ["| A_b | n |", "| --- | ---: |", "| x\\|y | 1 ± 2 |", "| {z} | #3 |"]
    assert lines[-1] == "- AF $= r_{ij}$, 5%."
    latex = table.latex()
    assert r"\begin{tabular}{lr}" in latex and r"\caption{50\% \& more}" in latex and r"\label{tab:t_1}" in latex
    assert r"x|y & 1 $\pm$ 2 \\" in latex and r"\{z\} & \#3 \\" in latex and r"A\_b & n \\" in latex
    assert r"AF $= r_{ij}$, 5\%." in latex, "formulas are left alone"
    assert [latex.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == sorted(
        latex.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")
    )


def test_overview_table(config, published):
    contents = {"demo_minus": result("demo_minus"), "cifar100_10": {}}
    scores = {stream: tables.stream_scores(config, stream, content, published) for stream, content in contents.items()}
    table = tables.overview_table(config, scores, published)
    assert [row[0] for row in table.rows] == ["Finetune", "Independent", "PAR"]
    assert all(row[2] == "not run" and row[1] != "not run" for row in table.rows)


def test_plan_in_words():
    rows = tables.plan_table("demo_minus", "0", plan()["seeds"]["0"]["tasks"]).rows
    assert rows[0] == ("0", "digits", "-", "-", "search", "0", "nothing is near")
    assert rows[1] == ("1", "textures", "0", "0.913", "search", "1", "nothing is near")
    assert rows[2] == ("2", "digits again", "0", "0.210", "join group 0, head only", "0", "near group 0")


def test_agreement_of_seeds():
    assert tables.agreement(plan()) == "All 2 seeds take the same decisions."
    assert tables.agreement(plan("reuse_cell")) == "Seed 1 decides differently from seed 0 on task 2."


def test_stamp_says_where_numbers_come_from(config):
    contents, plans = {"demo_minus": result("demo_minus")}, {"demo_minus": {"par": plan()}}
    stamped = tables.stamp(config, config.streams, contents, plans, PROVENANCE)
    assert stamped["Preset"] == "demo (DEMO)" and stamped["Commit"] == "abc1234-dirty" and stamped["Seeds"] == "0, 1"
    assert stamped["Extractor"] == "resnet18 (sha256 0123456789ab)" and "test machine" in stamped["Hardware"]
    assert stamped["Epochs"] == "100 a task (finetune, independent, par), 9 a task (ewc); search 100"


def test_epochs_that_differ_by_stream_are_said_by_stream():
    config = Config("cifar", ("mixed", "cifar10_5"), (0,), {"par": {}}, recipes={"mixed": {"epochs": 7}})
    assert tables.stamp(config, config.streams, {}, {}, PROVENANCE)["Epochs"] == (
        "mixed: 7 a task; cifar10_5: 100 a task; search 100"
    )


def test_score_matrix_takes_the_configured_estimator(config):
    matrix = score_matrix(distances(), config, 1, 3)
    np.testing.assert_allclose(matrix, [[np.nan] * 3, [0.913, np.nan, np.nan], [0.21, 0.8, np.nan]])


@pytest.fixture(scope="module")
def report(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("report") / "demo"
    contents = {"demo_minus": result("demo_minus")}
    render(folder, config, contents, {"demo_minus": {"par": plan()}}, {"demo_minus": distances()}, PROVENANCE)
    return folder


def test_report_shows_everything_and_every_link_leads_somewhere(report):
    page = (report / "README.md").read_text(encoding="utf-8")
    links = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', page)
    targets = {first or second for first, second in links}
    assert len(targets) > 15 and all((report / target).is_file() for target in targets)
    written = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    assert written == targets | {"README.md", "metrics.json"}
    assert "**DEMO.**" in page and "abc1234-dirty" in page and "## CIFAR100-10 (DEMO)" in page
    assert "All 2 seeds take the same decisions." in page


def test_report_metrics_for_dvc(report):
    content = json.loads((report / "metrics.json").read_text())
    entries = result("demo_minus")["learners"]["par"].values()
    assert content["AP"]["demo_minus"]["par"] == round(np.mean([entry["ap"] for entry in entries]), 4)
    assert content["params_M"]["demo_minus"] == {"finetune": 0.607, "independent": 1.8212, "par": 1.2141}
    assert content["seconds"]["demo_minus"]["par"] == 3600.0
    assert set(content) == {"AP", "AF", "params_M", "seconds"} and content["AF"]["cifar100_10"] == {}


def test_report_tables_on_disk(report):
    with open(report / "tables" / "cifar100_10.csv", newline="") as handle:
        rows = {(row["learner"], row["metric"]): row for row in csv.DictReader(handle)}
    assert rows["gpm", "AP"]["published"] == "0.725" and rows["gpm", "AP"]["verdict"] == "not run"
    assert "AlexNet" in rows["gpm", "AP"]["marks"]
    for suffix in ("md", "tex"):
        text = (report / "tables" / f"demo_minus.{suffix}").read_text(encoding="utf-8")
        assert "abc1234-dirty" in text and r"\frac{1}{T}" in text and "DEMO" in text


def test_report_is_the_same_every_time(report, config, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    contents = {"demo_minus": result("demo_minus")}
    render(again, config, contents, {"demo_minus": {"par": plan()}}, {"demo_minus": distances()}, PROVENANCE)
    files = [path for path in report.rglob("*") if path.is_file()]
    assert files and all((again / path.relative_to(report)).read_bytes() == path.read_bytes() for path in files)
