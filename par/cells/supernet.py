"""The search network: every operation on every edge, of which one per edge is active (sources.md#par-search)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from par.cells.genotype import EDGES, GENOTYPE_OPERATIONS, N_NODES, OPERATIONS
from par.cells.operations import State, join, make_operation
from par.cells.stack import CellInputs, CellStack


class SearchCell(nn.Module):
    """A cell with all 14 edges of :data:`par.cells.genotype.EDGES`, each with the modules of all operations."""

    def __init__(self, channels_in: tuple[int, int], channels: int, reduction: bool, after_reduction: bool):
        super().__init__()
        self.inputs = CellInputs(channels_in, channels, after_reduction, affine=False)
        self.stride = 2 if reduction else 1
        self.edges = nn.ModuleList(
            nn.ModuleDict(
                {
                    name: _search_operation(name, channels, self.stride if predecessor < 2 else 1)
                    for name in GENOTYPE_OPERATIONS
                }
            )
            for _, predecessor in EDGES
        )
        self.chosen = ["none"] * len(EDGES)

    def forward(self, older: State, newer: State) -> Tensor:
        states = self.inputs(older, newer)
        for node in range(N_NODES):
            terms = [
                states[predecessor].through(self.operation(edge, name))
                for edge, ((target, predecessor), name) in enumerate(zip(EDGES, self.chosen, strict=True))
                if target == node and name != "none"
            ]
            # A node whose edges are all "none" is zero, of the size that its siblings have.
            total = sum(terms[1:], terms[0]) if terms else torch.zeros_like(_strided(states[0].raw, self.stride))
            states.append(State(total))
        return join(states[2:])

    def operation(self, edge: int, name: str) -> nn.Module:
        """The module of an operation on one of :data:`par.cells.genotype.EDGES`."""
        operations = self.edges[edge]
        assert isinstance(operations, nn.ModuleDict)
        return operations[name]


def _search_operation(name: str, channels: int, stride: int) -> nn.Module:
    operation = make_operation(name, channels, stride, affine=False)
    if "pool" in name:  # brings pooled values to the scale of the other operations' outputs
        return nn.Sequential(operation, nn.BatchNorm2d(channels, affine=False))
    return operation


def _strided(images: Tensor, stride: int) -> Tensor:
    return images[:, :, ::stride, ::stride]


class Supernet(CellStack):
    """Body of the search network, without head: images float [n, 3, H, W] to features [n, 4 * channels].

    Differs from an expert in its stem (``channels`` instead of three times as many), in BatchNorms without scale and
    shift inside the cells and in one more BatchNorm after each pooling. Only the chosen operations are computed, and
    only they get gradients: the others keep gradient ``None``, so that neither clipping, weight decay nor momentum
    touches them. (Under the reference's torch 1.8 they got zero gradients, and both moved them; the choice is ours.)

    With 4 cells of 64 channels it has 946,496 parameters; the reference's 947,010 include a 2-way head of 514.

    Args: as for :class:`par.cells.expert.Expert`.
    """

    def __init__(self, n_cells: int, channels: int):
        def make_cell(kind: str, channels_in: tuple[int, int], after_reduction: bool) -> SearchCell:
            cell = SearchCell(channels_in, channels, kind == "reduce", after_reduction)
            cells[kind].append(cell)
            return cell

        cells: dict[str, list[SearchCell]] = {"normal": [], "reduce": []}
        super().__init__(n_cells, channels, channels, make_cell)
        self.cells_by_kind = cells

    def choose(self, operations: Mapping[str, Sequence[int]]) -> None:
        """Activate one operation per edge, the same in all cells of a kind.

        Args:
            operations: for "normal" and "reduce" 14 indices into :data:`par.cells.genotype.OPERATIONS`, in the order
                of :data:`par.cells.genotype.EDGES`. Before the first call every edge is "none".
        """
        for kind, cells in self.cells_by_kind.items():
            for cell in cells:
                cell.chosen = [OPERATIONS[index] for index in operations[kind]]
