"""Class prototypes: the mean feature of every class of a task (paper 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from par.schema import ConfigError


@dataclass(frozen=True)
class Prototypes:
    """``means`` float64 ``[C, d]``, ``counts`` int64 ``[C]``: the number of samples behind each mean."""

    means: np.ndarray
    counts: np.ndarray


def class_prototypes(features: np.ndarray, labels: np.ndarray, n_classes: int) -> Prototypes:
    """Mean of every class, in float64; exact for a class of identical float32 features.

    Args:
        features: ``[n, d]``.
        labels: int ``[n]``, each in ``0 ... n_classes - 1``.

    Raises:
        ConfigError: a class has no samples.
    """
    membership = class_membership(labels, n_classes)
    counts = np.bincount(labels, minlength=n_classes)
    if not counts.all():
        empty = ", ".join(map(str, np.flatnonzero(counts == 0)))
        raise ConfigError(
            f"class {empty} of {n_classes} has no samples among {len(labels)} and so no prototype; "
            "give every class at least one sample in the split that distance.split names."
        )
    # Sum, then divide: a sum of equal float32 numbers is exact in float64, a sum of n numbers x/n is not.
    means = membership.T @ np.asarray(features, np.float64) / counts[:, None]
    return Prototypes(means, counts.astype(np.int64))


def class_membership(labels: np.ndarray, n_classes: int) -> np.ndarray:
    """float64 ``[n, C]``: 1 where the sample belongs to the class, else 0."""
    return (np.asarray(labels)[:, None] == np.arange(n_classes)).astype(np.float64)
