"""The report as files: README.md, index.html, tables, figures, results, and what DVC reads."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import numpy as np
import pytest

from par.config import Sweeps
from par.files import read_json
from par.reporting import figures
from par.reporting.report import render, score_matrix
from tests.reporting.cases import demo_config, distances, inputs, plan, result
from tests.reporting.traceability import check_report


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "demo"
    render(folder, demo_config(), inputs())
    return folder


def test_readme_links_everything_that_is_there(report):
    page = (report / "README.md").read_text(encoding="utf-8")
    links = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', page)
    targets = {first or second for first, second in links}
    assert len(targets) > 30 and all((report / target).is_file() for target in targets)
    written = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    others = {
        "README.md",
        "index.html",
        "metrics.json",
        "digests.json",
        "curves/demo_minus.csv",
        "results/demo_minus.json",
    }
    assert written == targets | others
    assert "**DEMO.**" in page and "abc1234-dirty" in page and "## CIFAR100-10 (DEMO)" in page
    assert "All 2 seeds take the same decisions." in page


def test_there_is_a_figure_of_everything(report):
    names = {path.stem for path in (report / "figures").glob("*.png")}
    kinds = ("distance", "groups", "curves", "size", "accuracy", "cells", "search", "images", "alpha", "experts")
    assert names == {f"demo_minus_{kind}" for kind in kinds}
    assert {path.stem for path in (report / "figures").glob("*.svg")} == names - {"demo_minus_images"}


def test_numbers_follow_from_the_results(report):
    assert check_report(report) > 100


def test_a_changed_number_is_noticed(report, tmp_path):
    for path in report.rglob("*.*"):
        (tmp_path / path.relative_to(report)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.relative_to(report)).write_bytes(path.read_bytes())
    results = tmp_path / "results" / "demo_minus.json"
    results.write_text(results.read_text().replace('"n_params":1214100', '"n_params":1214101'))
    with pytest.raises(AssertionError):
        check_report(tmp_path)


def test_kept_results_are_those_of_evaluate_without_single_steps(report):
    expected = result("demo_minus")
    for by_seed in expected["learners"].values():
        for entry in by_seed.values():
            del entry["steps"]
    assert read_json(report / "results" / "demo_minus.json") == expected


def test_of_long_streams_the_ends_of_the_matrices_are_kept(tmp_path):
    from par.reporting.report import _write_results

    matrix = [[0.5 if j <= i else None for j in range(25)] for i in range(25)]
    content = {"stream": "s", "tasks": {}, "hardware": {}, "learners": {"par": {"0": {"accuracy": matrix}}}}
    _write_results(tmp_path / "s.json", content)
    kept = np.array(read_json(tmp_path / "s.json")["learners"]["par"]["0"]["accuracy"], float)
    assert np.isfinite(kept).sum() == 25 + 24 and np.isfinite(kept.diagonal()).all() and np.isfinite(kept[-1]).all()


def test_curves_for_dvc(report):
    with open(report / "curves" / "demo_minus.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0]) == ["tasks", "finetune", "independent", "par"] and [row["tasks"] for row in rows] == list(
        "123"
    )
    entries = result("demo_minus")["learners"]["par"].values()
    assert float(rows[-1]["par"]) == pytest.approx(np.mean([entry["ap"] for entry in entries]), abs=1e-6)


def test_a_stream_shows_its_tasks_its_chance_level_and_what_was_found(report):
    text = (report / "README.md").read_text(encoding="utf-8")
    assert "| Chance | 0.100 |" in text and "10: class 0, class 1" in text and "| 90 / 30 / 60 | 0.100 |" in text
    assert "| left aside | source digits | all | files not read: no image (such as train/1/notes.txt) | 3 |" in text
    assert "| duplicates | task 1 (textures) | 1 | 2 of 60 test images" in text


def test_nothing_is_shown_where_nothing_was_found(tmp_path):
    render(tmp_path, demo_config(), replace(inputs(), findings={"demo_minus": {"0": (), "1": ()}}))
    assert "left aside" not in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_tables_on_disk(report):
    with open(report / "tables" / "table_3_classic.csv", newline="") as handle:
        rows = {(row["learner"], row["metric"]): row for row in csv.DictReader(handle)}
    assert rows["gpm", "AP"]["published"] == "0.725" and rows["gpm", "AP"]["verdict"] == "not run"
    assert "AlexNet" in rows["gpm", "AP"]["marks"]
    for name in ("demo_minus", "demo_minus_variants", "table_1_ctrl", "table_5_ablation", "ours"):
        for suffix in ("md", "tex"):
            text = (report / "tables" / f"{name}.{suffix}").read_text(encoding="utf-8")
            assert "abc1234-dirty" in text and r"\frac{1}{T}" in text and "DEMO" in text


def test_ap_without_being_told_the_task_stands_beside_ap(report, tmp_path):
    assert not (report / "tables" / "identification.md").exists()
    given = inputs()
    found = given.results["demo_minus"] | {"identification": {"0": [0.5, 1.0, 0.75], "1": [1.0, 1.0, 0.5]}}
    for number, by_seed in enumerate(found["learners"].values()):
        for entry in by_seed.values():
            entry["ap_without_identity"] = 0.25 + number / 16
    render(tmp_path, demo_config(), replace(given, results={"demo_minus": found}))
    text = (tmp_path / "tables" / "identification.md").read_text(encoding="utf-8")
    assert "| Task identified | 0.792 ± 0.059 |" in text and "| By chance | 0.333 |" in text
    assert "| Finetune, not told | 0.250 |" in text and "| PAR, not told | 0.375 |" in text and "| EWC | - |" in text
    assert "## AP without being told the task" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert check_report(tmp_path) > 100
    kept = read_json(tmp_path / "results" / "demo_minus.json")
    assert kept["identification"] == found["identification"]


def test_score_matrix_takes_the_configured_estimator():
    matrix = score_matrix(distances(), demo_config().distance, 1, 3)
    np.testing.assert_allclose(matrix, [[np.nan] * 3, [0.913, np.nan, np.nan], [0.21, 0.8, np.nan]])


def test_a_report_without_any_result(tmp_path):
    nothing = type(inputs())({}, {}, {}, {}, {}, {}, {}, {}, {}, inputs().provenance, inputs().reference)
    render(tmp_path, demo_config(), nothing)
    assert "not run" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert not (tmp_path / "figures").exists() and read_json(tmp_path / "metrics.json")["mean_AP"] == {}


def test_a_report_of_plans_alone(tmp_path):
    """A preset without methods routes and trains nothing."""
    config, given = replace(demo_config(), methods={}), inputs()
    render(tmp_path, config, replace(given, results={}, cells={}, histories={}, sheets={}))
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == {
        f"demo_minus_{kind}" for kind in ("distance", "groups", "experts")
    }
    assert "1 of 6" in (tmp_path / "tables" / "demo_minus_variants.md").read_text(encoding="utf-8")


def test_distances_by_another_estimator_get_a_figure(tmp_path):
    ablation = replace(demo_config().ablation, variants=("distance_corrected",))
    config = replace(demo_config(), methods={}, sweeps=Sweeps(), ablation=ablation)
    plans = {"demo_minus": {"par": plan(), "distance_corrected": plan("reuse_cell")}}
    render(tmp_path, config, replace(inputs(), results={}, plans=plans, cells={}, histories={}, sheets={}))
    assert (tmp_path / "figures/demo_minus_distance_corrected.png").is_file()
    assert "corrected estimator on valid features" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_par_is_no_point_of_a_sweep_at_another_beta(tmp_path, monkeypatch):
    class Enough(Exception):
        """What is drawn of a sweep is known; the rest of the report takes seconds."""

    def sweep(points, *rest):
        drawn.append(points)
        raise Enough

    drawn = []
    monkeypatch.setattr(figures, "sweep", sweep)
    for name, beta in (("same", 0.75), ("other", 0.6)):
        with pytest.raises(Enough):
            render(tmp_path / name, replace(demo_config(), beta=beta), inputs())
    same, other = ([alpha for alpha, _ in points] for points in drawn)
    assert same == [0.5, 0.0, 1.0] and other == [0.0, 1.0]


def test_the_report_is_the_same_every_time(report, tmp_path):
    render(tmp_path, demo_config(), inputs())
    files = [path for path in report.rglob("*") if path.is_file()]
    assert files and all((tmp_path / path.relative_to(report)).read_bytes() == path.read_bytes() for path in files)
