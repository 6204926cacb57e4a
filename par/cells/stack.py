"""A stack of cells between a stem and a global average pooling: what the expert and the search network share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from par.cells.genotype import N_NODES
from par.cells.operations import FactorisedReduction, PointwiseConv, State


class CellInputs(nn.Module):
    """Bring the outputs of the last two cells to the cell's number of channels and to one spatial size.

    The older one is twice as large where the cell between was a reduction; there it is halved.
    """

    def __init__(self, channels_in: tuple[int, int], channels: int, after_reduction: bool, affine: bool):
        super().__init__()
        older, newer = channels_in
        self.older = FactorisedReduction(older, channels) if after_reduction else PointwiseConv(older, channels, affine)
        self.newer = PointwiseConv(newer, channels, affine)

    def forward(self, older: State, newer: State) -> list[State]:
        return [State(older.through(self.older)), State(newer.through(self.newer))]


class CellStack(nn.Module):
    """Stem, cells, global average pooling.

    The stem is a 3x3 convolution with BatchNorm to ``stem_channels``; its output is both inputs of the first cell.
    All cells have ``channels`` channels a node; those at one and two thirds of the depth are reductions.

    Args:
        n_cells: at least 1.
        channels: channels of each node, even.
        stem_channels: channels of the stem's output.
        make_cell: called as ``make_cell(kind, channels_in, after_reduction)`` with a name of
            :data:`par.cells.genotype.KINDS`, the channels of the cell's two inputs, and whether the cell before is a
            reduction; returns a module that maps two :class:`State` to the cell's output.
    """

    def __init__(
        self,
        n_cells: int,
        channels: int,
        stem_channels: int,
        make_cell: Callable[[str, tuple[int, int], bool], nn.Module],
    ):
        super().__init__()
        self.n_features = N_NODES * channels
        self.stem = nn.Sequential(nn.Conv2d(3, stem_channels, 3, padding=1, bias=False), nn.BatchNorm2d(stem_channels))
        reductions = {n_cells // 3, 2 * n_cells // 3}
        self.cells = nn.ModuleList()
        channels_in = (stem_channels, stem_channels)
        for index in range(n_cells):
            kind = "reduce" if index in reductions else "normal"
            self.cells.append(make_cell(kind, channels_in, index - 1 in reductions))
            channels_in = (channels_in[1], self.n_features)
        # Trains 2.7 times as fast as NCHW on a CPU (benchmarks/cells.py); the weights' layout carries to every output.
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """float [n, 3, H, W] to features [n, ``n_features``]."""
        older = newer = State(self.stem(images.contiguous(memory_format=torch.channels_last)))
        for cell in self.cells:
            older, newer = newer, State(cell(older, newer))
        return newer.raw.mean(dim=(2, 3))
