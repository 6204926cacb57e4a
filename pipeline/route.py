"""Stage ``route``: from prototypes to distances and from distances to a plan, for PAR and each of its variants.

Beside ``tables`` it is the only stage that depends on alpha and beta. Neither stands in a plan: thresholds that decide
alike write the same bytes, and nothing after this stage runs again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from tqdm import tqdm

from par.config import PAR, Config
from par.files import write_csv, write_json
from par.relatedness.distance import Estimator, distance_matrix, pair_score
from par.relatedness.plan import plan_to_json
from par.relatedness.prototypes import Prototypes
from par.relatedness.routing import route
from par.streams import Stream, load_stream
from pipeline.stage import DISTANCES, FEATURES, PLANS, PROTOTYPES, STREAMS, run_stage
from pipeline.tracking import Run

COLUMNS = ("seed", "estimator", "split", "task", "other", "distance", "score")


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``plans/<stream>/<variant>.json`` and ``distances/<stream>.csv``."""
    streams = {seed: load_stream(STREAMS / stream / str(seed)) for seed in config.seeds}
    variants = {name: config.routing(name) for name in (PAR, *config.variants_on(stream))}
    measures = sorted({(routing.distance.estimator, routing.distance.split) for routing in variants.values()})
    with np.load(FEATURES / f"{stream}.npz") as features, np.load(PROTOTYPES / f"{stream}.npz") as prototypes:
        extractor = json.loads(str(features["meta"]))
        matrices = {
            (estimator, split, seed): _distances(estimator, split, seed, built, features, prototypes)
            for estimator, split in tqdm(measures, desc=f"distances {stream}", unit="estimator")
            for seed, built in streams.items()
        }
    for name, routing in variants.items():
        estimator, split = routing.distance.estimator, routing.distance.split
        decisions = {
            seed: route(
                matrices[estimator, split, seed],
                [task.counts["train"] for task in built.tasks],
                [task.name for task in built.tasks],
                alpha=routing.alpha,
                beta=routing.beta,
                freeze_below=routing.freeze_below,
                estimator=estimator,
            )
            for seed, built in streams.items()
        }
        plan = plan_to_json(stream, name, estimator, decisions) | {"extractor": extractor}
        write_json(PLANS / stream / f"{name}.json", plan)
        run.artifact(PLANS / stream / f"{name}.json", "plans")
        for seed, tasks in decisions.items():
            run.metrics({f"experts/{name}": len({decision.group for decision in tasks})}, step=seed)
    rows = [
        dict(seed=seed, estimator=estimator, split=split, task=task, other=other, distance=raw, score=score)
        for (estimator, split, seed), matrix in matrices.items()
        for task in range(len(matrix))
        for other, raw, score in zip(range(task), matrix[task].tolist(), pair_score(estimator, matrix[task]).tolist())
    ]
    write_csv(DISTANCES / f"{stream}.csv", COLUMNS, rows)
    run.artifact(DISTANCES / f"{stream}.csv")


def _distances(
    estimator: Estimator,
    split: str,
    seed: int,
    built: Stream,
    features: Mapping[str, np.ndarray],
    prototypes: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Raw distances [T, T] of one seed's stream."""
    names = [f"{seed}/{task.index}/{split}" for task in built.tasks]
    return distance_matrix(
        estimator,
        [features[f"{name}/features"] for name in names],
        [features[f"{name}/labels"] for name in names],
        [Prototypes(prototypes[f"{name}/means"], prototypes[f"{name}/counts"]) for name in names],
    )


if __name__ == "__main__":
    run_stage("route", main)
