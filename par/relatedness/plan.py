"""A plan: what becomes of every task of a stream, as data that stages hand on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from par.files import read_json
from par.schema import ConfigError, parse, shown, to_plain


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


def read_plan(path: str | Path) -> dict[int, list[Decision]]:
    """Decisions by seed in a file of the stage ``route``.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the file cannot be read, or see :func:`plan_from_json`.
    """
    try:
        plan = read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no readable JSON ({error}); run the stage route again.") from None
    return plan_from_json(plan)


def plan_from_json(plan: Any) -> dict[int, list[Decision]]:
    """Decisions by seed.

    Raises:
        ConfigError: something is missing, unknown or of the wrong type, or the decisions do not fit together.
    """
    if not isinstance(plan, Mapping) or not isinstance(plan.get("seeds"), Mapping):
        raise ConfigError(f"The plan is {shown(plan)}, allowed is a mapping with tasks by seed under 'seeds'.")
    where = f"plan {plan.get('stream')}/{plan.get('variant')}"
    decisions = {}
    for seed, content in plan["seeds"].items():
        place = f"{where}, seed {seed}"
        raw = content.get("tasks") if isinstance(content, Mapping) else None
        if not str(seed).isdecimal() or not isinstance(raw, list) or not raw:
            raise ConfigError(f"{place} is {shown(content)}, allowed is a whole number with a list of 'tasks'.")
        tasks = [parse(Decision, one, f"{place}, task {position}") for position, one in enumerate(raw)]
        _check_decisions(tasks, place)
        decisions[int(seed)] = tasks
    return decisions


def _check_decisions(decisions: Sequence[Decision], place: str) -> None:
    """Tasks in order, groups numbered as they are created, and every cell searched before it is used."""
    cells: dict[int, int] = {}  # of each group's expert: the task whose search gave its cell
    for position, decision in enumerate(decisions):
        where = f"{place}, task {position}"
        if decision.task != position:
            raise ConfigError(f"{where}.task = {decision.task}, allowed is its position in the list.")
        if decision.group not in range(len(cells) + 1):
            raise ConfigError(f"{where}.group = {decision.group}, allowed is 0 to {len(cells)}, the next new group.")
        is_new = decision.group == len(cells)
        if is_new == (decision.decision == "join"):
            raise ConfigError(f"{where}: decision {decision.decision!r} does not go with group {decision.group}.")
        allowed = {"search": {position}, "reuse_cell": set(cells.values())}.get(decision.decision)
        if decision.cell_from not in (allowed if allowed is not None else {cells[decision.group]}):
            raise ConfigError(f"{where}.cell_from = {decision.cell_from}, which is no cell that it could have.")
        if is_new:
            cells[decision.group] = decision.cell_from
