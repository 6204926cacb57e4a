"""Stage ``evaluate``: all metrics of a stream, computed from predictions alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from tqdm import tqdm

from par.config import Config
from par.files import read_json, write_json
from par.metrics import chance_level, evaluate_learner
from par.streams import load_stream
from pipeline.stage import RESULTS, RUNS, STREAMS, run_stage
from pipeline.tracking import Run


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``results/<stream>.json`` (contract in README, section Architecture)."""
    streams = {seed: load_stream(STREAMS / stream / str(seed)) for seed in config.seeds}
    labels = {seed: [task.split("test").labels for task in built.tasks] for seed, built in streams.items()}
    learners: dict[str, dict[str, dict[str, Any]]] = {}
    for directory in tqdm(sorted((RUNS / stream).glob("*/*/")), desc=f"evaluate {stream}", unit="run"):
        learner, seed = directory.parent.name, int(directory.name)
        costs = read_json(directory / "steps.json")
        with np.load(directory / "predictions.npz") as archive:
            predictions = dict(archive)
        chains = costs.pop("chains")
        entry = evaluate_learner(predictions, labels[seed], chains, costs, (stream, learner, seed))
        learners.setdefault(learner, {})[str(seed)] = entry
        run.metrics({f"AP/{learner}": entry["ap"], f"AF/{learner}": entry["af"]}, step=seed)
    tasks = {
        str(seed): [
            {
                "name": task.name,
                "source": task.source,
                "n_classes": task.n_classes,
                "class_names": task.class_names,
                "chance": chance_level(of_task),
                "counts": task.counts,
            }
            for task, of_task in zip(built.tasks, labels[seed], strict=True)
        ]
        for seed, built in streams.items()
    }
    hardware = read_json(RUNS / stream / "hardware.json")
    out = RESULTS / f"{stream}.json"
    write_json(out, {"stream": stream, "tasks": tasks, "hardware": hardware, "learners": learners})
    run.artifact(out)


if __name__ == "__main__":
    run_stage("evaluate", main)
