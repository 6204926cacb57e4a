"""Genotypes: which operations a cell is made of and how they are wired (sources.md#expert). Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

OPERATIONS = ("none", "max_pool_3x3", "avg_pool_3x3", "skip_connect", "sep_conv_3x3", "dil_conv_3x3")
GENOTYPE_OPERATIONS = OPERATIONS[1:]  # "none" exists only during a search
KINDS = ("normal", "reduce")
N_NODES = 4  # intermediate nodes of a cell; its two inputs come before them
EDGES = tuple((node, predecessor) for node in range(N_NODES) for predecessor in range(2 + node))  # 14 a cell

Node = tuple[tuple[str, int], ...]  # two pairs (operation, predecessor), which Genotype checks


@dataclass(frozen=True)
class Genotype:
    """The wiring of a normal and of a reduction cell.

    Each cell is a tuple of four nodes, each node two pairs ``(operation, predecessor)``: predecessors 0 and 1 are the
    outputs of the last cell but one and of the last cell, 2 and above the cell's own nodes in their order.

    Raises:
        ValueError: a cell without exactly four nodes of two pairs, an operation outside :data:`GENOTYPE_OPERATIONS`,
            a predecessor that is no earlier state, or one predecessor used twice by a node.
    """

    normal: tuple[Node, ...]
    reduce: tuple[Node, ...]

    def __post_init__(self) -> None:
        for kind in KINDS:
            nodes = getattr(self, kind)
            if len(nodes) != N_NODES:
                raise ValueError(f"Genotype cell {kind!r} has {len(nodes)} nodes; give it exactly {N_NODES}.")
            for index, node in enumerate(nodes):
                _check_node(node, index, f"Genotype cell {kind!r}, node {index}")

    def to_json(self) -> dict[str, list[Any]]:
        """Plain lists, ready for JSON: ``{"normal": [[[operation, predecessor], ...], ...], "reduce": ...}``."""
        return {kind: [[list(pair) for pair in node] for node in getattr(self, kind)] for kind in KINDS}


def from_json(raw: Any) -> Genotype:
    """The genotype that :meth:`Genotype.to_json` wrote.

    Raises:
        ValueError: ``raw`` has another shape, or see :class:`Genotype`.
    """
    if not isinstance(raw, Mapping) or set(raw) != set(KINDS):
        found = f"the keys {sorted(map(str, raw))}" if isinstance(raw, Mapping) else repr(raw)
        raise ValueError(f"Genotype JSON holds {found}; give it exactly the keys 'normal' and 'reduce'.")
    return Genotype(**{kind: _cell_from_json(raw[kind], kind) for kind in KINDS})


def _cell_from_json(raw: Any, kind: str) -> tuple[Node, ...]:
    try:
        return tuple(tuple((operation, predecessor) for operation, predecessor in node) for node in raw)
    except (TypeError, ValueError):
        raise ValueError(
            f"Genotype cell {kind!r} is {raw!r}; give it a list of nodes, each of two pairs [operation, predecessor]."
        ) from None


def _check_node(node: Node, index: int, where: str) -> None:
    if len(node) != 2:
        raise ValueError(f"{where} has {len(node)} inputs; give it exactly 2.")
    for operation, predecessor in node:
        if operation not in GENOTYPE_OPERATIONS:
            raise ValueError(f"{where} has operation {operation!r}; choose one of {', '.join(GENOTYPE_OPERATIONS)}.")
        if type(predecessor) is not int or not 0 <= predecessor < 2 + index:
            raise ValueError(f"{where} has predecessor {predecessor!r}; choose a whole number from 0 to {1 + index}.")
    if node[0][1] == node[1][1]:
        raise ValueError(f"{where} uses predecessor {node[0][1]} twice; choose two different ones.")


def random_genotype(generator: np.random.Generator) -> Genotype:
    """A uniform draw: two distinct predecessors per node, each with one of the five operations."""

    def cell() -> tuple[Node, ...]:
        nodes = []
        for index in range(N_NODES):
            predecessors = sorted(generator.choice(2 + index, size=2, replace=False).tolist())
            operations = generator.choice(GENOTYPE_OPERATIONS, size=2).tolist()
            nodes.append(tuple(zip(operations, predecessors)))
        return tuple(nodes)

    return Genotype(normal=cell(), reduce=cell())


# Found by DARTS on CIFAR-10 (Liu et al., 2019: first and second order), without its 5x5 operations.
DARTS_V1 = Genotype(
    normal=(
        (("sep_conv_3x3", 1), ("sep_conv_3x3", 0)),
        (("skip_connect", 0), ("sep_conv_3x3", 1)),
        (("skip_connect", 0), ("sep_conv_3x3", 1)),
        (("sep_conv_3x3", 0), ("skip_connect", 2)),
    ),
    reduce=(
        (("max_pool_3x3", 0), ("max_pool_3x3", 1)),
        (("skip_connect", 2), ("max_pool_3x3", 0)),
        (("max_pool_3x3", 0), ("skip_connect", 2)),
        (("skip_connect", 2), ("avg_pool_3x3", 0)),
    ),
)
DARTS_V2 = Genotype(
    normal=(
        (("sep_conv_3x3", 0), ("sep_conv_3x3", 1)),
        (("sep_conv_3x3", 0), ("sep_conv_3x3", 1)),
        (("sep_conv_3x3", 1), ("skip_connect", 0)),
        (("skip_connect", 0), ("dil_conv_3x3", 2)),
    ),
    reduce=(
        (("max_pool_3x3", 0), ("max_pool_3x3", 1)),
        (("skip_connect", 2), ("max_pool_3x3", 1)),
        (("max_pool_3x3", 0), ("skip_connect", 2)),
        (("skip_connect", 2), ("max_pool_3x3", 1)),
    ),
)
