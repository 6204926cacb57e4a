"""The operations on the edges of a cell, and the cell states they read (sources.md#expert).

Every module maps float [n, C_in, H, W] to [n, C_out, ceil(H / stride), ceil(W / stride)]; tensors are channels_last.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class State:
    """A state of a cell and its ReLU, computed at the first use and then shared.

    Most operations start with a ReLU. One ReLU per state instead of one per operation gives the same bits
    (the reference applies one per operation) and trains 1.08 to 1.13 times faster (sources.md#cells).
    """

    def __init__(self, raw: Tensor):
        self.raw = raw
        if raw.requires_grad:
            raw.register_hook(_channels_last)

    @cached_property
    def activated(self) -> Tensor:
        return functional.relu(self.raw)

    def through(self, operation: nn.Module) -> Tensor:
        """The operation's output for this state."""
        return operation(self.activated if isinstance(operation, OnActivated) else self.raw)


def _channels_last(gradient: Tensor) -> Tensor:
    """A state's gradient in the layout of the state.

    The gradients of a mean over pixels and of a concatenation have another, and spread it; BatchNorm's backward then
    takes a path that is 4.7 times slower, a quarter of a search step (sources.md#cells).
    """
    return gradient.contiguous(memory_format=torch.channels_last)


class _Join(torch.autograd.Function):
    """Concatenation along the channels of states of one shape, float [n, C, H, W] each.

    Same numbers as ``torch.cat``, whose gradients are slices between whose pixels lie those of the others; a copy of
    each into a layout that BatchNorm takes is here one copy of all.
    """

    @staticmethod
    def forward(ctx: Any, *states: Tensor) -> Tensor:
        ctx.n_states = len(states)
        return torch.cat(states, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        pixels = gradient.permute(0, 2, 3, 1).unflatten(3, (ctx.n_states, -1))
        return pixels.movedim(3, 0).contiguous().permute(0, 1, 4, 2, 3).unbind()


def join(states: list[State]) -> Tensor:
    """The states of a cell's nodes, all of one shape [n, C, H, W], as its output [n, nodes * C, H, W]."""
    return _Join.apply(*(state.raw for state in states))


class OnActivated(nn.Module):
    """An operation that starts with a ReLU, which :class:`State` has already applied to its input."""


class PointwiseConv(OnActivated):
    """(ReLU) 1x1 convolution, BatchNorm."""

    def __init__(self, channels_in: int, channels: int, affine: bool):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, bias=False), nn.BatchNorm2d(channels, affine=affine)
        )

    def forward(self, activated: Tensor) -> Tensor:
        return self.layers(activated)


class FactorisedReduction(OnActivated):
    """(ReLU) halves height and width: one 1x1 convolution sees the even pixels, one the odd ones; concatenated.

    The reference also defines a BatchNorm here and does not use it; this one has none. An odd size lacks the last
    odd pixel, which is taken as zero.
    """

    def __init__(self, channels_in: int, channels: int):
        super().__init__()
        self.even = nn.Conv2d(channels_in, channels // 2, 1, bias=False)
        self.odd = nn.Conv2d(channels_in, channels // 2, 1, bias=False)

    def forward(self, activated: Tensor) -> Tensor:
        even, odd = _EvenAndOdd.apply(activated)
        return torch.cat((self.even(even), self.odd(odd)), dim=1)


class _EvenAndOdd(torch.autograd.Function):
    """The pixels of even row and column, and those of odd row and column, both [n, C, ceil(H / 2), ceil(W / 2)].

    Same numbers as two convolutions of stride 2, the second on ``images[:, :, 1:, 1:]``, whose gradient torch lays
    out in NCHW: forward and backward of a reduction of 256 channels at 32 pixels (batch 64) take 95 instead of 355 ms
    (sources.md#cells).
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> tuple[Tensor, Tensor]:
        ctx.shape = images.shape
        height, width = images.shape[2:]
        even = images[:, :, ::2, ::2].contiguous(memory_format=torch.channels_last)
        odd = torch.zeros_like(even)
        odd[:, :, : height // 2, : width // 2] = images[:, :, 1::2, 1::2]
        return even, odd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, even: Tensor, odd: Tensor) -> Tensor:
        height, width = ctx.shape[2:]
        gradient = torch.empty(
            ctx.shape, dtype=even.dtype, device=even.device, memory_format=torch.channels_last
        ).zero_()
        gradient[:, :, ::2, ::2] = even
        gradient[:, :, 1::2, 1::2] = odd[:, :, : height // 2, : width // 2]
        return gradient


class SeparableConv(OnActivated):
    """(ReLU) depthwise 3x3, pointwise, BatchNorm, twice; the stride is in the first depthwise convolution."""

    def __init__(self, channels: int, stride: int, affine: bool):
        super().__init__()
        self.layers = nn.Sequential(
            *_depthwise_separable(channels, stride, 1, affine),
            nn.ReLU(inplace=True),
            *_depthwise_separable(channels, 1, 1, affine),
        )

    def forward(self, activated: Tensor) -> Tensor:
        return self.layers(activated)


class DilatedConv(OnActivated):
    """(ReLU) depthwise 3x3 with dilation 2, pointwise, BatchNorm."""

    def __init__(self, channels: int, stride: int, affine: bool):
        super().__init__()
        self.layers = nn.Sequential(*_depthwise_separable(channels, stride, 2, affine))

    def forward(self, activated: Tensor) -> Tensor:
        return self.layers(activated)


def _depthwise_separable(channels: int, stride: int, dilation: int, affine: bool) -> list[nn.Module]:
    depthwise = nn.Conv2d(channels, channels, 3, stride, dilation, dilation, groups=channels, bias=False)
    return [depthwise, nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels, affine=affine)]


def make_operation(name: str, channels: int, stride: int, affine: bool) -> nn.Module:
    """The operation ``name`` of :data:`par.cells.genotype.GENOTYPE_OPERATIONS` with ``channels`` in and out.

    ``affine`` says whether its BatchNorms have a learnt scale and shift. "none" has no module: whoever searches
    leaves its edge out.
    """
    if name == "max_pool_3x3":
        return nn.MaxPool2d(3, stride, padding=1)
    if name == "avg_pool_3x3":
        return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else FactorisedReduction(channels, channels)
    if name == "sep_conv_3x3":
        return SeparableConv(channels, stride, affine)
    if name == "dil_conv_3x3":
        return DilatedConv(channels, stride, affine)
    raise ValueError(f"Operation {name!r} has no module; choose one of par.cells.genotype.GENOTYPE_OPERATIONS.")
