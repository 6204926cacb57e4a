"""Which task an image belongs to, by the frozen features alone: the task of the nearest class prototype."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from par.relatedness.distance import squared_distances
from par.relatedness.prototypes import Prototypes

STEPS = np.arange(-12, 5)  # temperatures tried are 2^k of the mean squared distance to the nearest prototype


def task_distances(features: np.ndarray, prototypes: Sequence[Prototypes]) -> np.ndarray:
    """Squared distance of every image to the nearest class prototype of every task.

    Args:
        features: ``[n, d]``.
        prototypes: of every task.

    Returns:
        float64 ``[n, T]``.
    """
    squared = squared_distances(features, np.concatenate([of_task.means for of_task in prototypes]))
    return _nearest(squared, prototypes)


def identify(features: np.ndarray, prototypes: Sequence[Prototypes]) -> np.ndarray:
    """The task (int64 ``[n]``) of the nearest prototype; of tasks equally near, the earliest."""
    return task_distances(features, prototypes).argmin(axis=1)


def held_out_distances(
    features: np.ndarray, labels: np.ndarray, task: int, prototypes: Sequence[Prototypes]
) -> np.ndarray:
    """:func:`task_distances` of the images behind the prototypes of ``task``, each left out of its own class's mean.

    Leaving x out of its mean is exact: ``x - U' = n/(n-1) (x - U)``. A class of one image has no mean without it.
    """
    squared = squared_distances(features, np.concatenate([of_task.means for of_task in prototypes]))
    counts = prototypes[task].counts[labels].astype(np.float64)
    own = sum(len(of_task.means) for of_task in prototypes[:task]) + labels, np.arange(len(labels))
    squared[own] = np.where(counts > 1, squared[own] * (counts / np.maximum(counts - 1, 1)) ** 2, np.inf)
    return _nearest(squared, prototypes)


def fit_temperature(distances: np.ndarray, tasks: np.ndarray) -> float:
    """The temperature at which :func:`task_probabilities` give held-out images of known ``tasks`` [n] most probability.

    One number, chosen on a grid of powers of 2: its precise value hardly matters.
    """
    scale = max(float(distances.min(axis=1).mean()), np.finfo(np.float64).tiny)
    rows = np.arange(len(tasks))

    def likelihood(temperature: float) -> float:
        found = task_probabilities(distances, temperature)[rows, tasks]
        return float(np.log(np.maximum(found, 1e-300)).mean())

    return max((scale * 2.0**step for step in STEPS), key=likelihood)


def task_probabilities(distances: np.ndarray, temperature: float) -> np.ndarray:
    """Softmax over tasks of minus squared distance / temperature (float64 ``[n, T]``)."""
    relative = distances - distances.min(axis=1, keepdims=True)
    weights = np.exp(-relative / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


def _nearest(squared: np.ndarray, prototypes: Sequence[Prototypes]) -> np.ndarray:
    """The smallest of the distances ``[all classes, n]`` to each task's classes, as ``[n, T]``."""
    starts = np.cumsum([0, *(len(of_task.means) for of_task in prototypes[:-1])])
    return np.minimum.reduceat(squared, starts, axis=0).T
