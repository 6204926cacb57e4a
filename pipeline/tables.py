"""Stage ``tables``: the report of the preset, and the headline numbers of the pipeline's MLflow run."""

from __future__ import annotations

import platform
from importlib.metadata import version

import pandas as pd

from par.config import PAR, Config
from par.files import read_json
from par.reporting.report import render
from pipeline.command import DISTANCES, PLANS, REPORTS, RESULTS, run_tables
from pipeline.tracking import Run, git_state


def main(config: Config, run: Run) -> None:
    """Write ``reports/<preset>/``."""
    results = {stream: read_json(RESULTS / f"{stream}.json") for stream in config.streams}
    plans = {
        stream: {name: read_json(PLANS / stream / f"{name}.json") for name in (PAR, *config.variants_on(stream))}
        for stream in config.streams
    }
    distances = {stream: pd.read_csv(DISTANCES / f"{stream}.csv") for stream in config.streams}
    commit, dirty = git_state()
    provenance = {"commit": commit, "dirty": dirty, "python": platform.python_version(), "torch": version("torch")}
    out = REPORTS / config.preset
    render(out, config, results, plans, distances, provenance)
    metrics = read_json(out / "metrics.json")
    run.parent_metrics(
        {
            f"{metric}/{stream}.{learner}": value
            for metric, by_stream in metrics.items()
            for stream, by_learner in by_stream.items()
            for learner, value in by_learner.items()
        }
    )
    run.parent_artifact(out)
    run.parent_artifact("params.yaml")
    print(f"Report: {out / 'README.md'}")


if __name__ == "__main__":
    run_tables(main)
