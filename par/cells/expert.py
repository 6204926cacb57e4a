"""PAR's expert: a small network of identical cells (paper 3.4; sources.md#expert)."""

from __future__ import annotations

from torch import Tensor, nn

from par.cells.genotype import Genotype, Node
from par.cells.operations import State, join, make_operation
from par.cells.stack import CellInputs, CellStack


class Cell(nn.Module):
    """Four nodes, each the sum of two operations on earlier states; the output is their concatenation."""

    def __init__(
        self,
        nodes: tuple[Node, ...],
        channels_in: tuple[int, int],
        channels: int,
        reduction: bool,
        after_reduction: bool,
    ):
        super().__init__()
        self.inputs = CellInputs(channels_in, channels, after_reduction, affine=True)
        self.predecessors = [tuple(predecessor for _, predecessor in node) for node in nodes]
        self.operations = nn.ModuleList(
            nn.ModuleList(
                make_operation(name, channels, stride=2 if reduction and predecessor < 2 else 1, affine=True)
                for name, predecessor in node
            )
            for node in nodes
        )

    def forward(self, older: State, newer: State) -> Tensor:
        states = self.inputs(older, newer)
        for (first, second), operations in zip(self.predecessors, self.operations):
            assert isinstance(operations, nn.ModuleList)
            states.append(State(states[first].through(operations[0]) + states[second].through(operations[1])))
        return join(states[2:])


class Expert(CellStack):
    """Body of an expert, without heads: images float [n, 3, H, W] to features [n, 4 * channels].

    Any size from 4x4 works, odd ones included. DARTS_V1 with 4 cells of 64 channels has 221,120 parameters, 256 fewer
    than the reference, which counts two BatchNorms that it defines and does not use.

    Args:
        genotype: the wiring of its cells.
        n_cells: number of cells; those at ``n_cells // 3`` and ``2 * n_cells // 3`` are reductions.
        channels: channels of each node, even, the same in all cells.
    """

    def __init__(self, genotype: Genotype, n_cells: int, channels: int):
        def make_cell(kind: str, channels_in: tuple[int, int], after_reduction: bool) -> Cell:
            return Cell(getattr(genotype, kind), channels_in, channels, kind == "reduce", after_reduction)

        super().__init__(n_cells, channels, 3 * channels, make_cell)
