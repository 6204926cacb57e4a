"""From distances to a plan: which expert learns each task, with which cell, and why (paper 3.2-3.3, eq. 7-8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from par.relatedness.distance import Estimator, pair_score, to_score
from par.relatedness.plan import Decision

TINY = 25  # tasks of so few training images join a big group at any distance in the public code (sources.md#par-code)
TINY_FACTOR = 10  # ... whose largest task has so many times as many


def route(
    distances: np.ndarray,
    n_train: Sequence[int],
    names: Sequence[str],
    *,
    alpha: float,
    beta: float,
    freeze_below: float,
    estimator: Estimator,
) -> list[Decision]:
    """Decide for every task of a stream, in order; of groups equally near, the earliest counts.

    Args:
        distances: raw distances D ``[T, T]``, entry ``[i, j]`` for ``j < i`` (:func:`par.relatedness.distance_matrix`).
        n_train: training images of every task.
        names: of the tasks, for the plan's readers.
        alpha: a task at most this far from its nearest group joins it.
        beta: a task at most this far gets a new expert with that group's cell; a farther one a searched cell.
        freeze_below: a joining task with fewer training images than this share of the group's largest task trains its
            head only. The public code takes the joining task itself into account, which changes nothing for shares up
            to 1: if it were the largest it would not be below.

    Raises:
        ValueError: a distance that is needed is not finite.
    """
    decisions: list[Decision] = []
    groups: list[list[int]] = []
    for task, name in enumerate(names):
        if not np.isfinite(distances[task, :task]).all():
            raise ValueError(f"distances of task {task} ({name}) are {distances[task, :task]}; all must be finite.")
        scores = [group_score(estimator, distances[task, members]) for members in groups]
        choice = _choose(scores, groups, n_train, task, alpha, beta, estimator)
        head_only, reason = False, choice.reason
        if choice.decision == "join":
            assert choice.group is not None
            group = choice.group
            largest = max(n_train[member] for member in groups[group])
            if n_train[task] < freeze_below * largest:
                head_only = True
                reason += f"; {n_train[task]} training images against {largest} there, so it trains its head only"
        else:
            group = len(groups)
            groups.append([])
        groups[group].append(task)
        nearest = int(np.argmin(scores)) if scores else None
        decisions.append(
            Decision(
                task=task,
                name=name,
                decision=choice.decision,
                group=group,
                nearest_group=nearest,
                distance=None if nearest is None else round(scores[nearest], 6) + 0.0,  # + 0.0: no "-0.0"
                cell_from=task if choice.group is None else decisions[groups[choice.group][0]].cell_from,
                head_only=head_only,
                reason=reason,
            )
        )
    return decisions


@dataclass(frozen=True)
class _Choice:
    decision: Literal["search", "reuse_cell", "join"]
    group: int | None  # the existing group that is joined or whose cell is reused; None where a cell is searched
    reason: str


def group_score(estimator: Estimator, distances: np.ndarray) -> float:
    """Score of a group: the mean of D, mapped (eq. 7-8); the ``reference`` maps first (sources.md#par-code)."""
    if estimator == "reference":
        return float(np.mean(pair_score(estimator, distances)))
    return float(to_score(np.mean(distances)))


def _choose(
    scores: Sequence[float],
    groups: Sequence[Sequence[int]],
    n_train: Sequence[int],
    task: int,
    alpha: float,
    beta: float,
    estimator: Estimator,
) -> _Choice:
    """The decision for ``task``, given its score to every group."""
    if not scores:
        return _Choice("search", None, "first task, so its cell is searched")
    if estimator == "reference" and n_train[task] <= TINY:
        for group in np.argsort(scores, kind="stable").tolist():
            largest = max(n_train[member] for member in groups[group])
            if largest >= TINY_FACTOR * n_train[task]:
                reason = (
                    f"only {n_train[task]} training images, so it joins the nearest group with at least {TINY_FACTOR} "
                    f"times as many in a task: group {group} (distance {scores[group]:.3f})"
                )
                return _Choice("join", group, reason)
    nearest = int(np.argmin(scores))
    where = f"group {nearest} (distance {scores[nearest]:.3f})"
    if scores[nearest] <= alpha:
        return _Choice("join", nearest, f"close to {where}, so it joins that group")
    if scores[nearest] <= beta:
        return _Choice("reuse_cell", nearest, f"related to {where}, so a new expert takes that group's cell")
    return _Choice("search", None, f"unlike every group, nearest is {where}, so its cell is searched")
