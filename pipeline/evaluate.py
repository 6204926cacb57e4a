"""Stage ``evaluate``: all metrics of a stream, computed from predictions and, for unnamed tasks, features alone."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from par.config import Config
from par.files import canonical_json, read_json, sha256_bytes, write_json
from par.metrics import average_accuracy_without_identity, chance_level, evaluate_learner
from par.relatedness.identification import identify
from par.relatedness.prototypes import Prototypes
from par.streams import Stream, load_stream
from pipeline.models import record_models
from pipeline.stage import FEATURES, PROTOTYPES, RESULTS, RUNS, STREAMS, TEST_FEATURES, StageError, run_stage
from pipeline.tracking import Run


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``results/<stream>.json`` (contract in README, section Architecture)."""
    streams = {seed: load_stream(STREAMS / stream / str(seed)) for seed in config.seeds}
    labels = {seed: [task.split("test").labels for task in built.tasks] for seed, built in streams.items()}
    identified = {seed: _identified(config, stream, seed, built) for seed, built in streams.items()}
    learners: dict[str, dict[str, dict[str, Any]]] = {}
    for directory in tqdm(sorted((RUNS / stream).glob("*/*/")), desc=f"evaluate {stream}", unit="run"):
        learner, seed = directory.parent.name, int(directory.name)
        costs = read_json(directory / "steps.json")
        predictions = _predictions(directory / "predictions.npz", streams[seed])
        chains = costs.pop("chains")
        entry = evaluate_learner(predictions, labels[seed], chains, costs, (stream, learner, seed))
        if found := identified[seed]:
            entry["ap_without_identity"] = average_accuracy_without_identity(predictions, labels[seed], chains, found)
        entry["predictions_digest"] = _digest(predictions)
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
    result = {"stream": stream, "tasks": tasks, "hardware": hardware, "learners": learners}
    if all(identified.values()):
        result["identification"] = {
            str(seed): [float(np.mean(of_task == task)) for task, of_task in enumerate(found)]
            for seed, found in identified.items()
        }
    write_json(out, result)
    run.artifact(out)
    record_models(config, streams, learners, FEATURES / f"{stream}.npz", PROTOTYPES / f"{stream}.npz", run)


def _digest(predictions: dict[str, np.ndarray]) -> str:
    """sha256 of all predictions of a run, whatever the order and packing of their file."""
    digests = {name: sha256_bytes(classes.tobytes()) for name, classes in predictions.items()}
    return sha256_bytes(canonical_json(digests).encode())


def _identified(config: Config, stream: str, seed: int, built: Stream) -> list[np.ndarray]:
    """The task that the frozen features find for every test image of every task; none where they were not extracted."""
    with np.load(TEST_FEATURES / f"{stream}.npz") as features:
        of_tasks = [features.get(f"{seed}/{task.index}/test/features") for task in built.tasks]
    if any(of_task is None for of_task in of_tasks):
        return []
    with np.load(PROTOTYPES / f"{stream}.npz") as archive:
        names = [f"{seed}/{task.index}/{config.distance.split}" for task in built.tasks]
        prototypes = [Prototypes(archive[f"{name}/means"], archive[f"{name}/counts"]) for name in names]
    return [identify(of_task, prototypes) for of_task in of_tasks]


def _predictions(path: Path, stream: Stream) -> dict[str, np.ndarray]:
    """Predictions by ``"i/j"``, uint8 [n_test_j], each a class of task j.

    Raises:
        StageError: the file is damaged, or holds anything else.
    """
    try:
        with np.load(path) as archive:  # refuses Python objects, which would be code
            predictions = dict(archive)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StageError(f"{path} cannot be read ({error}); delete {path.parents[2]} and train again.") from None
    tasks = {str(task.index): task for task in stream.tasks}
    for name, classes in predictions.items():
        task = tasks.get(name.partition("/")[2])
        if task is None:
            wrong = "which is no task of the stream"
        elif classes.dtype != np.uint8:
            wrong = f"whose type is {classes.dtype}, not uint8"
        elif classes.shape != (task.counts["test"],):
            wrong = f"whose shape is {classes.shape} for {task.counts['test']} test images"
        elif classes.max(initial=0) >= task.n_classes:
            wrong = f"of a class {classes.max()} where there are {task.n_classes}"
        else:
            continue
        raise StageError(f"{path} holds {name!r}, {wrong}; delete {path.parents[2]} and train again.")
    return predictions


if __name__ == "__main__":
    run_stage("evaluate", main)
