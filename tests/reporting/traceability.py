"""Does every number of a report follow from the accuracy matrices it keeps?"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from par import metrics
from par.files import read_json
from par.reporting.published import Published, load_published
from par.reporting.scores import FORMATS, METRICS
from par.seeding import numpy_generator

FROM_MATRIX = {
    "ap": metrics.average_accuracy,
    "af": metrics.average_forgetting,
    "bwt": metrics.backward_transfer,
    "forgetting_max": metrics.forgetting_max,
    "forgetting_avalanche": metrics.forgetting_avalanche,
    "bwt_continuum": metrics.bwt_continuum,
}
SHOWN = ("AP", "AF", "M", "AP_without_identity", "identified")  # metrics that every table with rows of them prints
ENDS = ("ap", "af", "bwt", "forgetting_avalanche")  # what follows from the diagonal and the last row


def check_report(folder: Path) -> int:
    """Recompute the metrics of ``results/*.json`` from their matrices and every row of ``tables/*.csv`` from those
    metrics and published.yaml; find them in the md and tex tables. Returns how many numbers were checked."""
    published = load_published()
    results = {path.stem: read_json(path) for path in sorted((folder / "results").glob("*.json"))}
    n_checked = sum(_check_result(result) for result in results.values())
    n_checked += sum(_check_chance(folder, result) for result in results.values())
    for path in sorted((folder / "tables").glob("*.csv")):
        with open(path, newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        texts = [path.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".md", ".tex")]
        n_checked += sum(_check_row(row, results, published, *texts, str(path)) for row in rows)
    _check_metrics(folder, results)
    return n_checked


def _check_result(result: dict[str, Any]) -> int:
    """Metrics from matrices: AP, AF and the other definitions, and the bootstrap interval."""
    n_checked = 0
    for learner, by_seed in result["learners"].items():
        for seed, entry in by_seed.items():
            matrix = np.array(entry["accuracy"], float)
            for name, metric in FROM_MATRIX.items():
                value = metric(matrix)
                if name in ENDS or np.isfinite(matrix[np.tril_indices(len(matrix))]).all():
                    assert entry[name] == pytest.approx(value, abs=1e-12), f"{name} of {learner}, seed {seed}"
                    n_checked += 1
            n_test = np.array([task["counts"]["test"] for task in result["tasks"][seed]])
            generator = numpy_generator("bootstrap", result["stream"], learner, int(seed))
            interval = metrics.ap_interval(matrix[-1], n_test, generator)
            assert entry["ap_interval"] == pytest.approx(interval, abs=1e-12), f"interval of {learner}, seed {seed}"
    return n_checked


def _check_chance(folder: Path, result: dict[str, Any]) -> int:
    """The chance level in the stream's table; reports made before there was one have none."""
    tasks = result["tasks"].values()
    if not all("chance" in task for of_seed in tasks for task in of_seed):
        return 0
    level = statistics.fmean(task["chance"] for of_seed in tasks for task in of_seed)
    table = (folder / "tables" / f"{result['stream']}.md").read_text(encoding="utf-8")
    assert f"| Chance | {level:{FORMATS['AP']}}" in table, f"chance level of {result['stream']}"
    return 1


def _check_row(
    row: dict[str, str], results: dict[str, Any], published: Published, markdown: str, latex: str, where: str
) -> int:
    """A row of a csv table from the results, and its mean and deviation in the same table as md and tex."""
    learner, metric = row["learner"], row["metric"]
    where = f"{where}: {row}"
    by_seed = results.get(row["stream"], {}).get("learners", {}).get(learner, {})
    if metric == "identified":
        values = [statistics.fmean(tasks) for tasks in results[row["stream"]]["identification"].values()]
    elif metric == "AP_without_identity":
        values = [entry["ap_without_identity"] for entry in by_seed.values()]
    else:
        values = [METRICS[metric](entry) for entry in by_seed.values()]
    printed = published.find(published.paper_stream(row["stream"]), learner, metric)
    assert row["published"] == ("" if printed is None else str(printed.value)), where
    assert int(row["n_seeds"]) == len(values), where
    if not values:
        assert row["mean"] == row["difference"] == "" and row["verdict"] == "not run", where
        return 0
    mean = statistics.fmean(values)
    assert float(row["mean"]) == pytest.approx(mean, abs=1e-9), where
    spread = statistics.stdev(values) if len(values) > 1 else None
    assert row["std"] == "" if spread is None else float(row["std"]) == pytest.approx(spread), where
    if metric in SHOWN:
        words = f"{mean:{FORMATS[metric]}}" + (f" ± {spread:{FORMATS[metric]}}" if spread else "")
        assert words in markdown, where
        assert words.replace("±", r"$\pm$").replace("-", "$-$") in latex, where
    if metric == "AP":
        ends = [statistics.fmean(entry["ap_interval"][end] for entry in by_seed.values()) for end in (0, 1)]
        assert [float(row["low"]), float(row["high"])] == pytest.approx(ends), where
    if printed is None or published.paper_stream(row["stream"]) != row["stream"]:
        assert row["difference"] == row["verdict"] == "", where
    elif printed.backbone is None or row["difference"]:  # of another network there is none
        difference = mean - printed.value
        assert float(row["difference"]) == pytest.approx(difference), where
        if row.get("budget"):  # reports made before it was said have no such column
            # the table of variants shows no published value
            is_beside_the_paper = any(words in markdown for words in ("AP, paper", "<br>paper "))
            assert row["verdict"] == "" and (row["budget"] in markdown) == is_beside_the_paper, where
        elif metric in ("AP", "AF"):
            near = abs(difference) <= max(0.01, 2 * (spread or 0.0)) + 1e-9
            assert row["verdict"] == ("reproduced" if near else "above" if difference > 0 else "below"), where
    return 1


def _check_metrics(folder: Path, results: dict[str, Any]) -> None:
    """What DVC reads."""
    kept = read_json(folder / "metrics.json")

    def mean(stream: str, learner: str) -> float:
        return statistics.fmean(entry["ap"] for entry in results[stream]["learners"][learner].values())

    for learner, value in kept["mean_AP"].items():
        ran = [mean(stream, learner) for stream, result in results.items() if learner in result["learners"]]
        assert value == pytest.approx(statistics.fmean(ran), abs=1e-4), f"{folder}: mean AP of {learner}"
    for stream, values in kept["par"].items():
        assert values["AP"] == pytest.approx(mean(stream, "par"), abs=1e-4), f"{folder}: AP of PAR on {stream}"
