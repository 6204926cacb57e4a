"""Modules of SG-F and LMC (sources.md#soft-gating, sources.md#lmc), and what their networks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from par.networks.pooling import SIDE, mean_of_quarters

DEPTH = 4  # module layers, each halving the map, rounded up: 16 px and fewer end at 1x1, 32 px at 2x2, 84 px at 6x6


class ConvModule(nn.Sequential):
    """3x3 convolution with bias -> BatchNorm -> ReLU -> 2x2 max-pool; 37,056 parameters for 64 -> 64 channels.

    The convolution pads by 1; LMC's pads by 2, which costs a third more work at 32 px for the same parameters.
    """

    def __init__(self, channels_in: int, channels: int):
        super().__init__(
            nn.Conv2d(channels_in, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        )
        self.to(memory_format=torch.channels_last)


def flatten(maps: Tensor) -> Tensor:
    """Maps [n, C, H, W] of any size -> features [n, C * SIDE^2]."""
    return mean_of_quarters(maps).flatten(1)


def n_features(channels: int) -> int:
    """Length of what :func:`flatten` returns."""
    return channels * SIDE**2
