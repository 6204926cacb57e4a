"""Finished learners as models in MLflow: what the stage ``evaluate`` hands to the journal."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from par.config import Config, resolve_path
from par.streams import SourceError, Stream
from par.use.card import write_service
from par.use.identifier import Identity
from pipeline.journal import home, safe_name
from pipeline.stage import RUNS
from pipeline.tracking import Run


def stream_identity(config: Config, stream: Stream, features: Path, prototypes: Path) -> Identity:
    """What the tasks of a built stream are told by, with its features and prototypes in these files.

    Raises:
        SourceError: a file is missing.
    """
    weights = config.extractor.weights
    place = None if weights is None else str(resolve_path(weights).resolve())
    split, n_tasks = config.distance.split, len(stream.tasks)
    return Identity.of_stream(features, prototypes, stream.seed, n_tasks, split, place)


def record_models(
    config: Config,
    streams: Mapping[int, Stream],
    learners: Mapping[str, Mapping[str, Mapping[str, Any]]],
    features: Path,
    prototypes: Path,
    run: Run,
) -> None:
    """Give every finished learner of a stream a run of its own with its model, as ``tracking.models`` says.

    What prevents it is printed and no reason for a stage to fail.

    Args:
        streams: the built stream of every seed.
        learners: learner -> seed -> metrics (:func:`par.metrics.evaluate_learner`).
        features, prototypes: files of the stream.
    """
    seeds = {"first_seed": config.seeds[:1], "all": config.seeds, "none": ()}[config.tracking.models]
    try:
        for seed in seeds:
            identity = stream_identity(config, streams[seed], features, prototypes)
            for learner, of_learner in learners.items():
                if str(seed) in of_learner:
                    _record(config, streams[seed], learner, of_learner[str(seed)], identity, run)
    except (OSError, SourceError) as error:
        print(f"MLflow: not all models are recorded ({error}); run this stage again to record them.")


def _record(
    config: Config, stream: Stream, learner: str, found: Mapping[str, Any], identity: Identity, run: Run
) -> None:
    accuracies = found["accuracy"][-1]
    metrics = {
        "AP": found["ap"],
        "AP_without_identity": found.get("ap_without_identity"),
        "AF": found["af"],
        "params_M": found["n_params"] / 1e6,
        **{f"accuracy/task{task}": accuracy for task, accuracy in enumerate(accuracies)},
    }
    tags = {"stream": stream.name, "stream.digest": stream.digest, "learner": learner, "seed": str(stream.seed)}
    home().mkdir(exist_ok=True)
    with (
        run.child(f"{learner} seed {stream.seed}") as child,
        tempfile.TemporaryDirectory(dir=home()) as folder,  # on the disk of the journals, so that links are possible
    ):
        place = RUNS / stream.name / learner / str(stream.seed)
        write_service(Path(folder), place, stream, accuracies, identity)
        name = safe_name(f"{config.tracking.experiment}-{stream.name}-{learner}")
        child.model(name, Path(folder), metrics, tags)
