"""Convolutions that every CPU computes rightly."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

NARROW = 8  # input channels; below it torch's strided 1x1 convolution is not safe, see :func:`convolve`


def convolve(inputs: Tensor, kernel: Tensor, stride: tuple[int, ...], padding: str | tuple[int, ...]) -> Tensor:
    """``functional.conv2d`` for all strided convolutions of this project; they have no bias.

    On CPUs without AVX-512 the weight gradient of oneDNN (torch 2.14.1, ``jit_1x1:avx2``) for a strided 1x1
    convolution with fewer than :data:`NARROW` input channels in channels_last writes beyond its buffers, and the
    process aborts later, anywhere. There the pixels that the stride keeps go through an unstrided one: the same
    convolution. Wider ones are left as they are, because their weight gradients would differ in the last bit.
    """
    if kernel.shape[2:] == (1, 1) and max(stride) > 1 and padding == (0, 0) and kernel.shape[1] < NARROW:
        inputs, stride = inputs[:, :, :: stride[0], :: stride[1]], (1, 1)
    return functional.conv2d(inputs, kernel, stride=stride, padding=padding)


class StridedConv(nn.Conv2d):
    """``nn.Conv2d`` without bias, through :func:`convolve`."""

    def __init__(self, channels_in: int, channels: int, kernel_size: int, stride: int, padding: int = 0):
        super().__init__(channels_in, channels, kernel_size, stride, padding, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return convolve(inputs, self.weight, self.stride, self.padding)
