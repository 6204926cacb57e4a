"""A plan: what becomes of every task of a stream, as data that stages hand on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from par.schema import parse, to_plain


@dataclass(frozen=True)
class Decision:
    """What becomes of one task.

    ``group`` is the expert that learns it; ``distance`` its score (eq. 8, rounded to 6 digits) to ``nearest_group``,
    both ``None`` for the first task; ``cell_from`` the task whose search gave that expert's cell, the task itself if it
    is searched. ``head_only``: the group's expert stays frozen. Thresholds are left out, so that plans which decide
    alike are equal byte by byte.
    """

    task: int
    name: str
    decision: Literal["search", "reuse_cell", "join"]
    group: int
    nearest_group: int | None
    distance: float | None
    cell_from: int
    head_only: bool
    reason: str


def chains(decisions: Sequence[Decision]) -> list[list[int]]:
    """Tasks of every group in the order they are learned; groups in the order they were created."""
    groups: list[list[int]] = [[] for _ in range(1 + max(decision.group for decision in decisions))]
    for decision in decisions:
        groups[decision.group].append(decision.task)
    return groups


def plan_to_json(
    stream: str, variant: str, estimator: str, decisions: Mapping[int, Sequence[Decision]]
) -> dict[str, Any]:
    """The plan of one variant on one stream, ready for :func:`par.files.write_json`; ``decisions`` by seed."""
    return {
        "stream": stream,
        "variant": variant,
        "estimator": estimator,
        "seeds": {
            str(seed): {"tasks": [to_plain(decision) for decision in tasks]} for seed, tasks in decisions.items()
        },
    }


def plan_from_json(plan: Mapping[str, Any]) -> dict[int, list[Decision]]:
    """Decisions by seed.

    Raises:
        ConfigError: an entry lacks a field, has an unknown one or one of the wrong type.
    """
    return {
        int(seed): [
            parse(Decision, raw, f"plan {plan['stream']}/{plan['variant']}, seed {seed}, task {position}")
            for position, raw in enumerate(content["tasks"])
        ]
        for seed, content in plan["seeds"].items()
    }
