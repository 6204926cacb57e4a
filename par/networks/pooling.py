"""Pooling of the last map to 2x2, so that heads fit every image size, without atomics in CUDA's backward pass.

torch's adaptive pooling adds gradients by atomics there, whose sums have another order in every run. Its windows over
``n`` pixels are two of ``ceil(n / 2)`` that start ``floor(n / 2)`` apart: the windows of a plain pooling.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

SIDE = 2  # leaves the map of a 32-pixel image as it is, in the AlexNet and in SG-F's and LMC's networks


def max_of_quarters(maps: Tensor) -> Tensor:
    """Maps [n, C, H, W] -> [n, C, min(2, H), min(2, W)], the bits of adaptive max-pooling on a CPU."""
    return functional.max_pool2d(maps, *_windows(maps))


def mean_of_quarters(maps: Tensor) -> Tensor:
    """Maps [n, C, H, W] of any size -> [n, C, 2, 2]; a single row or column counts twice.

    On a CPU adaptive pooling stays: from windows of 3x3 on its sums have another order, and so other last bits.
    """
    return functional.adaptive_avg_pool2d(maps, SIDE) if maps.device.type == "cpu" else _mean_of_windows(maps)


def _mean_of_windows(maps: Tensor) -> Tensor:
    height, width = maps.shape[2:]
    maps = maps.expand(-1, -1, max(SIDE, height), max(SIDE, width))
    return functional.avg_pool2d(maps, *_windows(maps))


def _windows(maps: Tensor) -> tuple[list[int], list[int]]:
    """Kernel and stride, by height and width."""
    sides = maps.shape[2:]
    return [-(-side // SIDE) for side in sides], [max(1, side // SIDE) for side in sides]
