"""How far a task is from itself, on real features: `python -m benchmarks.floor --data DIR`.

Images of a task of CIFAR100-10 are dealt into two tasks of equal classes, with the same number of images a class on
both sides; the distance of such a pair ought to be 0. Printed is its mean over draws and tasks, for `paper` and
`corrected`, beside the floor that `paper` has for well separated classes (sources.md#distance-floor).
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from par.config import ExtractorSettings
from par.relatedness.distance import Estimator, pairwise
from par.relatedness.extractor import load_extractor
from par.relatedness.prototypes import class_prototypes
from par.streams import build_stream, load_stream

COUNTS = (4, 20, 50, 200)  # images a class and side
DRAWS = 5
ESTIMATORS = [estimator for estimator in get_args(Estimator) if estimator != "reference"]


def halves(
    features: np.ndarray, labels: np.ndarray, count: int, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Features and labels of two disjoint sets with ``count`` images of every class each."""
    rows = np.stack([generator.permutation(np.flatnonzero(labels == label)) for label in range(labels.max() + 1)])
    for part in (rows[:, :count], rows[:, count : 2 * count]):
        yield features[part.ravel()], labels[part.ravel()]


def distance_from_itself(
    estimator: Estimator, features: np.ndarray, labels: np.ndarray, count: int, generator: np.random.Generator
) -> float:
    """Distance of one half from the other."""
    new, old = halves(features, labels, count, generator)
    own, other = (class_prototypes(*half, labels.max() + 1) for half in (new, old))
    return pairwise(estimator, *new, own, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--size", type=int, default=64, help="pixels that EfficientNet-Lite0 sees")
    options = parser.parse_args()
    torch.set_num_threads(1)
    extractor = load_extractor(ExtractorSettings(network="efficientnet_lite0", image_size=options.size))
    with tempfile.TemporaryDirectory() as folder:
        build_stream("cifar100_10", 0, options.data, folder)
        splits = [task.split("train") for task in load_stream(folder).tasks[: options.tasks]]
        tasks = [(extractor.features(split.images), np.asarray(split.labels)) for split in splits]
    print("| images a class | floor | " + " | ".join(ESTIMATORS) + " |\n|---|---|---|---|")
    for count in COUNTS:
        n_classes = int(tasks[0][1].max()) + 1
        floor = n_classes / 2 * (math.log1p(1 / count) - math.log1p(-1 / count))
        means = [
            np.mean(
                [
                    distance_from_itself(estimator, *task, count, np.random.default_rng(draw))
                    for draw in range(DRAWS)
                    for task in tasks
                ]
            )
            for estimator in ESTIMATORS
        ]
        print(f"| {count} | {floor:.3f} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |", flush=True)


if __name__ == "__main__":
    main()
