"""Speed of the task distance against broadcasting by task and class, measured in one run on one thread,
in CPU seconds, so that other processes on the machine count little.

    python benchmarks/distance.py [--tasks 100] [--rounds 3]

100 old tasks x 5 prototypes x 512 dimensions, a new task of 5 classes with 500 features each, all float64. The
broadcasting loops are what the equations say word by word, one class of one task at a time; the authors' code is the
torch one. Also printed: the largest difference between the results.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when numpy loads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from par.relatedness.distance import to_each
from par.relatedness.prototypes import Prototypes, class_prototypes

CLASSES, DIMENSIONS, PER_CLASS = 5, 512, 500


def sample_task(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, Prototypes]:
    """Non-negative features with class structure, as a network with ReLU gives."""
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    centres = generator.normal(size=(CLASSES, DIMENSIONS))
    features = np.abs(centres[labels] + generator.normal(size=(len(labels), DIMENSIONS)))
    return features, labels, class_prototypes(features, labels, CLASSES)


def broadcast_numpy(features, labels, own, others) -> np.ndarray:
    """One class of one task at a time, numpy."""
    distances = []
    for other in others:
        total = 0.0
        for label in range(CLASSES):
            samples = features[labels == label]
            rho = np.sqrt(((samples - own.means[label]) ** 2).sum(axis=1))
            nu = np.sqrt(((samples[:, None] - other.means[None]) ** 2).sum(axis=2)).min(axis=1)
            total += np.log(nu / rho).mean()
        distances.append(total)
    return np.array(distances)


def broadcast_torch(features, labels, own, others) -> np.ndarray:
    """The same with torch."""
    by_class = [torch.from_numpy(features[labels == label]) for label in range(CLASSES)]
    means = torch.from_numpy(own.means)
    distances = []
    for other in others:
        total, old = 0.0, torch.from_numpy(other.means)
        for label, samples in enumerate(by_class):
            rho = torch.sqrt(torch.sum((samples - means[label]) ** 2, dim=-1))
            gaps = samples.unsqueeze(1) - old.unsqueeze(0)
            nu = torch.sqrt(torch.sum(gaps**2, dim=-1)).min(dim=-1).values
            total += torch.log(nu / rho).mean().item()
        distances.append(total)
    return np.array(distances)


def cpu_seconds(compute: Callable[..., np.ndarray], *arguments) -> tuple[float, np.ndarray]:
    """CPU time of one call, and its result."""
    start = time.process_time()
    result = compute(*arguments)
    return time.process_time() - start, result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tasks", type=int, default=100, metavar="N", help="old tasks")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of which the fastest counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    features, labels, own = sample_task(generator)
    others = [sample_task(generator)[2] for _ in range(options.tasks)]
    task = features, labels, own, others
    loops = {"broadcasting, torch": broadcast_torch, "broadcasting, numpy": broadcast_numpy}
    seconds = {name: [] for name in ("to_each", *loops)}
    expected = {}
    for _ in range(options.rounds):  # interleaved: a slower phase of the machine hits all
        for _ in range(5):
            elapsed, result = cpu_seconds(to_each, "paper", *task)
            seconds["to_each"].append(elapsed)
        for name, loop in loops.items():
            elapsed, expected[name] = cpu_seconds(loop, *task)
            seconds[name].append(elapsed)
    ours = min(seconds["to_each"])
    print(f"to_each             {ours:7.4f} s")
    for name in loops:
        best = min(seconds[name])
        difference = np.abs(result - expected[name]).max()
        print(f"{name} {best:7.4f} s   ratio {best / ours:5.1f}   largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
