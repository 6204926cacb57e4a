"""The report of a preset: everything under ``reports/<preset>/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from par.config import PAR, Config
from par.files import write_csv, write_json, write_text
from par.reporting import figures, tables
from par.reporting.published import Published, load_published

DEMO_WARNING = (
    "> **DEMO.** Small streams made of data sets that come with Python packages, trained for a few epochs. The numbers "
    "show that the pipeline works; they are not those of the paper's streams and say nothing about them.\n"
)


def render(
    report_dir: Path,
    config: Config,
    results: Mapping[str, Any],
    plans: Mapping[str, Mapping[str, Any]],
    distances: Mapping[str, pd.DataFrame],
    provenance: Mapping[str, Any],
) -> None:
    """Write the whole report, file by file, each atomically: README.md shows all of it in order.

    Args:
        report_dir: the directory, made when it does not exist.
        results: stream -> content of ``results/<stream>.json``; a stream of ``config`` that is missing is "not run".
        plans: stream -> variant -> content of ``plans/<stream>/<variant>.json``.
        distances: stream -> ``distances/<stream>.csv``.
        provenance: see :func:`par.reporting.tables.stamp`.
    """
    published = load_published()
    scores = {
        stream: tables.stream_scores(config, stream, results.get(stream, {}), published) for stream in config.streams
    }
    write_json(report_dir / "metrics.json", tables.dvc_metrics(scores))
    sections = [
        f"# Report of the preset `{config.preset}`\n",
        DEMO_WARNING if config.preset == tables.DEMO else "",
        _stamp_table(tables.stamp(config, config.streams, results, plans, provenance)),
        "## Overview\n",
        tables.overview_table(config, scores, published).markdown(),
    ]
    for stream in config.streams:
        plan = plans.get(stream, {}).get(PAR)
        table = tables.stream_table(config, stream, scores[stream], published)
        stamped = tables.stamp(config, [stream], results, plans, provenance)
        _write_table(report_dir / "tables", table, scores[stream], stamped)
        sections += [f"## {table.title}\n", table.markdown(), _links(stream, plan is not None)]
        if plan is not None:
            write_text(report_dir / "tables" / f"{stream}_plan.md", _plan_page(stream, plan, stamped))
            sections.append(_plan_section(config, stream, plan))
        drawn = _draw(report_dir / "figures", config, stream, scores[stream], results, plan, distances, published)
        sections += [_image(name, words, 400 if "_accuracy_" in name else 640) for name, words in drawn.items()]
    sections += ["## Definitions\n", "\n".join(f"- {formula}" for formula in tables.FORMULAS) + "\n"]
    write_text(report_dir / "README.md", "\n".join(section for section in sections if section))


def score_matrix(distances: pd.DataFrame, config: Config, seed: int, n_tasks: int) -> np.ndarray:
    """The scores s_ij [T, T] of one seed by the configuration's estimator and split; NaN where there is no pair.

    Args:
        distances: columns ``seed, estimator, split, task, other, score``, one row a pair ``other < task``.
    """
    wanted = (
        (distances["seed"] == seed)
        & (distances["estimator"] == config.distance.estimator)
        & (distances["split"] == config.distance.split)
    )
    pairs = distances[wanted]
    scores = np.full((n_tasks, n_tasks), np.nan)
    scores[pairs["task"], pairs["other"]] = pairs["score"]
    return scores


def _draw(
    folder: Path,
    config: Config,
    stream: str,
    scores: tables.Scores,
    results: Mapping[str, Any],
    plan: Mapping[str, Any] | None,
    distances: Mapping[str, pd.DataFrame],
    published: Published,
) -> dict[str, str]:
    """Draw the figures of one stream, those of one seed for the first; returns file name -> what it shows."""
    title, seed = tables.stream_title(config, stream, published), config.seeds[0]
    drawn: dict[str, tuple[figures.Figure, str]] = {}
    if plan is not None:
        tasks = plan["seeds"][str(seed)]["tasks"]
        matrix = score_matrix(distances[stream], config, seed, len(tasks))
        drawn["distance"] = (
            figures.distance_heatmap(matrix, tasks, config.alpha, config.beta, f"Task distances, {title}, seed {seed}"),
            "Distance of every task from the earlier ones; on the diagonal its group, at the right the decision and, "
            "in brackets, the distance of the nearest group",
        )
        drawn["groups"] = (
            figures.task_groups(tasks, f"Task groups, {title}, seed {seed}"),
            "The groups that share an expert",
        )
    learners = results.get(stream, {}).get("learners", {})
    run = [learner for learner in scores if learner in learners]
    if run:
        names = {learner: tables.method_name(learner, published) for learner in scores}
        matrices = {
            learner: np.array([entry["accuracy"] for entry in learners[learner].values()], float) for learner in run
        }
        drawn["curves"] = (
            figures.stream_curves(matrices, names, f"Accuracy over the stream, {title}"),
            "Mean accuracy on the tasks learned so far; bands are one standard deviation over seeds",
        )
        drawn["size"] = (
            figures.size_scatter(scores, names, f"AP against size, {title}"),
            "AP against the number of parameters; hollow marks are published values",
        )
        for learner in run:
            first = min(learners[learner], key=int)
            task_names = [task["name"] for task in results[stream]["tasks"][first]]
            matrix = np.array(learners[learner][first]["accuracy"], float)
            drawn[f"accuracy_{learner}"] = (
                figures.accuracy_heatmap(matrix, task_names, f"{names[learner]}, {title}, seed {first}"),
                f"Accuracy matrix of {names[learner]}",
            )
    for name, (figure, _) in drawn.items():
        figures.save(figure, folder / f"{stream}_{name}")
    return {f"{stream}_{name}": words for name, (_, words) in drawn.items()}


def _write_table(folder: Path, table: tables.Table, scores: tables.Scores, stamped: Mapping[str, str]) -> None:
    """The table as md, tex and csv; md and tex carry the definitions and the stamp."""
    origin = "; ".join(f"{name}: {words}" for name, words in stamped.items()) + "."
    whole = replace(table, notes=(*table.notes, *tables.FORMULAS, origin))
    write_text(folder / f"{table.name}.md", f"# {table.title}\n\n{whole.markdown()}")
    write_text(folder / f"{table.name}.tex", whole.latex())
    rows = [score.row() for by_metric in scores.values() for score in by_metric.values()]
    write_csv(folder / f"{table.name}.csv", tables.CSV_COLUMNS, rows)


def _plan_page(stream: str, plan: Mapping[str, Any], stamped: Mapping[str, str]) -> str:
    sections = [f"# Plan of {stream}\n", tables.agreement(plan) + "\n"]
    for seed in sorted(plan["seeds"], key=int):
        table = tables.plan_table(stream, seed, plan["seeds"][seed]["tasks"])
        sections += [f"## Seed {seed}\n", table.markdown()]
    return "\n".join([*sections, "## Where it comes from\n", _stamp_table(stamped)])


def _plan_section(config: Config, stream: str, plan: Mapping[str, Any]) -> str:
    seed = str(config.seeds[0])
    rule = f"A task joins a group up to alpha = {config.alpha:g} and takes its cell up to beta = {config.beta:g}."
    table = tables.plan_table(stream, seed, plan["seeds"][seed]["tasks"])
    return f"**Plan, seed {seed}.** {rule} {tables.agreement(plan)}\n\n{table.markdown()}"


def _links(stream: str, has_plan: bool) -> str:
    plan = f" · plans of all seeds: [md](tables/{stream}_plan.md)" if has_plan else ""
    return f"Table: [md](tables/{stream}.md) [LaTeX](tables/{stream}.tex) [csv](tables/{stream}.csv){plan}\n"


def _image(name: str, words: str, width: int) -> str:
    return f'<img src="figures/{name}.png" alt="{words}" width="{width}">\n\n*{words}* ([svg](figures/{name}.svg))\n'


def _stamp_table(stamped: Mapping[str, str]) -> str:
    return "| | |\n| --- | --- |\n" + "".join(f"| {name} | {words} |\n" for name, words in stamped.items())
