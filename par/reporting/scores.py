"""Metrics of learners on streams, each a value per seed beside what the paper printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from par.config import PAR, Config, LearnerSettings
from par.methods import load_method
from par.reporting.published import Published, Value
from par.settings import resolve

POINT = 0.01  # one percentage point of accuracy

METRICS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "AP": lambda entry: entry["ap"],
    "AF": lambda entry: entry["af"],
    "M": lambda entry: entry["n_params"] / 1e6,
    "state_M": lambda entry: entry["n_state"] / 1e6,
    "experts": lambda entry: entry["n_experts"],
    "cells": lambda entry: entry["n_cells_searched"],
    "seconds": lambda entry: entry["seconds"] + entry["seconds_search"],
    "hours": lambda entry: (entry["seconds"] + entry["seconds_search"]) / 3600,
}
FORMATS = {  # z: no minus before a zero
    "AP": "z.3f",
    "AP_without_identity": "z.3f",
    "identified": "z.3f",
    "AF": "z.3f",
    "M": ".3f",
    "state_M": ".3f",
    "experts": ".3g",
    "cells": ".3g",
    "seconds": ",.0f",
    "hours": ".3f",
}
JUDGED = ("AP", "AF")  # what the tolerance of one point is meant for

CSV_COLUMNS = "stream learner metric mean std n_seeds low high published difference verdict budget marks".split()


@dataclass(frozen=True)
class Score:
    """One metric of one learner on one stream: a value per seed (none when not run) and what the paper printed."""

    stream: str
    learner: str
    metric: str
    values: tuple[float, ...]
    interval: tuple[float, float] | None  # 95% bootstrap over test images, only for AP
    published: Value | None
    comparable: bool = True  # False: the paper's stream has other images, its value is there for orientation alone
    same_network: bool = True  # False: so is its value, of another network
    budget: str = ""  # how much less than the paper the preset trains, as :func:`budget` says it

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None with fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus published, of a comparable stream and the same network."""
        if self.mean is None or self.published is None or not (self.comparable and self.same_network):
            return None
        return self.mean - self.published.value

    @property
    def verdict(self) -> str:
        """``reproduced`` within max(1 point, 2 std), else ``above`` or ``below``; ``not run``; empty where there is no
        difference, the metric is no accuracy or the preset trains less than the paper."""
        if not self.values:
            return "not run"
        if self.difference is None or self.budget or self.metric not in JUDGED:
            return ""
        if abs(self.difference) <= max(POINT, 2 * (self.std or 0)) + 1e-9:
            return "reproduced"
        return "above" if self.difference > 0 else "below"

    def text(self) -> str:
        """``mean ± std`` with the metric's digits; ``-`` when not run."""
        if not self.values:
            return "-"
        digits = FORMATS[self.metric]
        spread = f" ± {self.std:{digits}}" if self.std else ""
        return f"{self.mean:{digits}}{spread}"

    def row(self) -> dict[str, Any]:
        """The score as a row of :data:`CSV_COLUMNS`."""
        low, high = self.interval or (None, None)
        return {
            "stream": self.stream,
            "learner": self.learner,
            "metric": self.metric,
            "mean": self.mean,
            "std": self.std,
            "n_seeds": len(self.values),
            "low": low,
            "high": high,
            "published": self.published.value if self.published else None,
            "difference": self.difference,
            "verdict": self.verdict,
            "budget": self.budget,
            "marks": "; ".join(self.published.marks) if self.published else "",
        }


def with_seconds(result: Mapping[str, Any], trained: Mapping[str, Any], searched: Mapping[str, Any]) -> dict[str, Any]:
    """A stream's result with the wall-clock seconds that the pipeline keeps apart from it.

    Every entry gains ``seconds`` of training and ``seconds_search`` of its variant's searches, every step ``seconds``.

    Args:
        result: the content of ``results/<stream>.json``.
        trained, searched: those of ``seconds/train/<stream>.json`` and ``seconds/search/<stream>.json``.
    """
    learners: dict[str, dict[str, Any]] = {}
    for learner, by_seed in result["learners"].items():
        for seed, entry in by_seed.items():
            clock = trained[learner][seed]["steps"]
            searches = searched.get(learner, {}).get(seed, {}).values()
            learners.setdefault(learner, {})[seed] = entry | {
                "seconds": sum(clock.values()),
                "seconds_search": sum(search["seconds"] for search in searches),
                "steps": [step | {"seconds": clock[str(step["task"])]} for step in entry["steps"]],
            }
    return {**result, "learners": learners}


Scores = dict[str, dict[str, Score]]  # learner -> metric -> score, in the order of the table's rows


def stream_scores(config: Config, stream: str, result: Mapping[str, Any], published: Published) -> Scores:
    """Every metric of every learner of ``stream``: first those of the configuration, then those that only ``result``
    holds, then those that only the paper has.

    Args:
        result: the content of ``results/<stream>.json``; an empty mapping when the stream was not run.
    """
    learners = result.get("learners", {})
    variants = config.variants_on(stream)
    names = [*config.methods, *((PAR, *variants) if variants else ()), *learners, *published.methods_on(stream)]
    return {
        learner: {
            metric: score(config, stream, learner, metric, learners.get(learner, {}), published) for metric in METRICS
        }
        for learner in dict.fromkeys(names)
    }


def score(
    config: Config, stream: str, learner: str, metric: str, entries: Mapping[str, Any], published: Published
) -> Score:
    """One metric of one learner.

    Args:
        entries: seed -> entry of ``results/<stream>.json``; empty when the learner was not run.
    """
    by_seed = [entries[seed] for seed in sorted(entries, key=int)]
    interval = None
    if metric == "AP" and by_seed:
        low, high = (fmean(entry["ap_interval"][end] for entry in by_seed) for end in (0, 1))
        interval = (low, high)
    values = tuple(float(METRICS[metric](entry)) for entry in by_seed)
    paper = published.paper_stream(stream)
    printed = published.find(paper, learner, metric)
    other_network = printed.backbone if by_seed and printed is not None else None
    same_network = other_network is None or other_network == _backbone(config, stream, learner)
    compared = by_seed and printed is not None and paper == stream and same_network
    words = budget(config, published.settings, stream, learner) if compared and published.settings else ""
    return Score(stream, learner, metric, values, interval, printed, paper == stream, same_network, words)


def budget(config: Config, paper: Config, stream: str, learner: str) -> str:
    """What a learner trains less than in the paper, such as ``3 of 100 epochs, width 32 of 64``; empty if nothing.

    Args:
        paper: the paper's own settings.
    """
    ours, theirs = (_extent(resolve(settings, stream, learner)) for settings in (config, paper))
    parts = []
    for name in ours:
        if ours[name] < theirs.get(name, 0):
            few, many = f"{ours[name]:g}", f"{theirs[name]:g}"
            parts.append(f"{few} of {many} {name}" if "epochs" in name else f"{name} {few} of {many}")
    return ", ".join(parts)


def _extent(settings: LearnerSettings) -> dict[str, float]:
    """How long a learner trains and how wide and deep its network is, by names for people."""
    method = load_method(settings.method)
    found: dict[str, float] = {"epochs": settings.recipe.epochs}
    if settings.method == PAR:
        found["search epochs"] = settings.search.epochs
    if "network" in method.blocks:
        found |= {"width": settings.network.width, "layers": 2 + 8 * settings.network.n_blocks}
    if "expert" in method.blocks:
        found["channels"] = settings.expert.channels
    own = {name: getattr(settings.hyper, name) for name in ("width", "channels") if hasattr(settings.hyper, name)}
    return found | own


def _backbone(config: Config, stream: str, learner: str) -> str | None:
    """See :meth:`par.methods.bases.method.Method.backbone`."""
    settings = resolve(config, stream, learner)
    return load_method(settings.method).backbone(settings.hyper)


def chance(stream: str, result: Mapping[str, Any]) -> Score:
    """The chance level of AP: the mean over tasks of the share of the largest test class, a value per seed.

    Args:
        result: the content of ``results/<stream>.json``; an empty mapping when the stream was not run.
    """
    by_seed = result.get("tasks", {})
    values = (fmean(task["chance"] for task in by_seed[seed]) for seed in sorted(by_seed, key=int))
    return Score(stream, "chance", "AP", tuple(values), None, None)


def identified(stream: str, result: Mapping[str, Any]) -> Score:
    """How often the task of a test image is identified, mean over tasks; a value per seed.

    Args:
        result: the content of ``results/<stream>.json`` with ``identification``.
    """
    by_seed = result["identification"]
    values = tuple(fmean(by_seed[seed]) for seed in sorted(by_seed, key=int))
    return Score(stream, "", "identified", values, None, None)


def without_identity(stream: str, learner: str, result: Mapping[str, Any]) -> Score:
    """AP of a learner that is not told the task, see :func:`par.metrics.average_accuracy_without_identity`."""
    entries = result["learners"].get(learner, {})
    values = tuple(entries[seed]["ap_without_identity"] for seed in sorted(entries, key=int))
    return Score(stream, learner, "AP_without_identity", values, None, None)


def headline(methods: Sequence[str], scores: Mapping[str, Scores]) -> dict[str, float]:
    """Means over seeds of every method that was run, named for MLflow's charts: ``AP/<stream>.<method>``, and so on.

    ``gap`` is AP minus the paper's, where the images are the paper's. First comes PAR's mean AP over the streams, which
    is thus what MLflow draws when runs are compared.
    """
    names = {"AP": "AP", "AF": "AF", "M": "params_M", "hours": "hours"}
    numbers: dict[str, float] = {}
    of_par = [fmean(rows[PAR]["AP"].values) for rows in scores.values() if PAR in methods and rows[PAR]["AP"].values]
    if of_par:
        numbers["AP.par"] = fmean(of_par)
    for stream, rows in scores.items():
        for method in methods:
            row = rows[method]
            if row["AP"].values:
                numbers |= {f"{title}/{stream}.{method}": fmean(row[metric].values) for metric, title in names.items()}
            if row["AP"].difference is not None:
                numbers[f"gap/{stream}.{method}"] = row["AP"].difference
    return numbers


def dvc_metrics(methods: Sequence[str], scores: Mapping[str, Scores]) -> dict[str, dict[str, Any]]:
    """What ``dvc metrics diff`` and ``dvc exp show`` print, few enough to be read side by side: AP of every method,
    averaged over the streams it was run on, and AP, AF and M of PAR on every stream. No times: they never repeat."""
    ran = {
        method: [fmean(rows[method]["AP"].values) for rows in scores.values() if rows[method]["AP"].values]
        for method in methods
    }
    mean_ap = {method: round(fmean(values), 4) for method, values in ran.items() if values}
    of_par = {
        stream: {metric: round(fmean(rows[PAR][metric].values), 4) for metric in ("AP", "AF", "M")}
        for stream, rows in scores.items()
        if PAR in methods and rows[PAR]["AP"].values
    }
    return {"mean_AP": mean_ap, PAR: of_par}
