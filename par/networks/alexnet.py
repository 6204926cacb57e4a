"""The AlexNet of HAT and GPM (sources.md#alexnet): three convolutions and two fully connected layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from par.networks.dropout import Dropout
from par.networks.pooling import SIDE, max_of_quarters
from par.schema import ConfigError

CHANNELS = (64, 128, 256)
KERNELS = (4, 3, 2)
N_HIDDEN = 2048
DROPOUT = (0.2, 0.2, 0.5, 0.5, 0.5)  # after each layer
MIN_IMAGE = 16  # pixels; below it the third convolution has no input left


class AlexNet(nn.Module):
    """conv4 64 - conv3 128 - conv2 256, each with ReLU and 2x2 max-pool, then fc 2048 - fc 2048 (ReLU).

    At 32 pixels and width 1 it has 6,503,872 parameters (HAT), with ``norm`` 6,508,416 (GPM). A map of one pixel is
    not pooled further (16-pixel images). A last map above 2x2 (images above 43 pixels) is max-pooled to 2x2, so that
    the trunk keeps this size on larger images: unpooled, an 84-pixel image would give 49M.

    Args:
        image_size: height and width in pixels, at least 16.
        width: factor of all layer sizes (MNTDP's "wider" HAT: 2.5, sources.md#hat).
        norm: batch normalisation after every layer, and no biases.
        linear: class of the fully connected layers.

    Raises:
        ConfigError: the images are too small.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        width: float = 1.0,
        norm: bool = False,
        linear: type[nn.Linear] = nn.Linear,
    ):
        super().__init__()
        if min(image_size) < MIN_IMAGE:
            raise ConfigError(
                f"AlexNet cannot take images of {image_size[0]}x{image_size[1]} pixels; "
                f"they need {MIN_IMAGE} at least, or another network."
            )
        channels = [3, *(max(1, round(width * size)) for size in CHANNELS)]
        hidden = max(1, round(width * N_HIDDEN))
        n_pixels = _last_map(image_size)
        fully = [channels[-1] * n_pixels, hidden, hidden]
        self.n_features = hidden
        self.layers = nn.ModuleList(
            [nn.Conv2d(channels[i], channels[i + 1], kernel, bias=not norm) for i, kernel in enumerate(KERNELS)]
            + [linear(fully[i], fully[i + 1], bias=not norm) for i in range(2)]
        )
        norms = [nn.BatchNorm2d(size) for size in channels[1:]] + [nn.BatchNorm1d(hidden) for _ in range(2)]
        self.norms = nn.ModuleList(norms if norm else [nn.Identity() for _ in norms])
        self.dropouts = nn.ModuleList(Dropout(share) for share in DROPOUT)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] of the size given -> features [n, ``n_features``]."""
        outputs = images
        for number, layer in enumerate(self.layers):
            if number == len(KERNELS):
                outputs = max_of_quarters(outputs).flatten(1)
            outputs = self.dropouts[number](self.norms[number](layer(outputs)))
            if outputs.dim() == 4 and min(outputs.shape[2:]) > 1:
                outputs = functional.max_pool2d(outputs, 2)
            # Before dropout, where the papers have it, it gives the same bits on four times the numbers.
            outputs = functional.relu(outputs)
        return outputs


def _last_map(image_size: tuple[int, int]) -> int:
    """Pixels of the map that the first fully connected layer sees."""
    height, width = image_size
    for kernel in KERNELS:
        height, width = height - kernel + 1, width - kernel + 1
        if min(height, width) > 1:
            height, width = height // 2, width // 2
    return min(SIDE, height) * min(SIDE, width)
