"""CAT's multilayer perceptron (sources.md#cat)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

INPUT_DROPOUT, HIDDEN_DROPOUT = 0.2, 0.5


class Mlp(nn.Module):
    """pixels - fc - fc with ReLU and dropout; 10,148,000 parameters at 32 pixels and width 2000.

    Args:
        image_size: height and width in pixels.
        width: units of both layers.
    """

    def __init__(self, image_size: tuple[int, int], width: int):
        super().__init__()
        self.n_features = width
        self.layers = nn.ModuleList([nn.Linear(3 * image_size[0] * image_size[1], width), nn.Linear(width, width)])
        self.dropouts = nn.ModuleList(nn.Dropout(share) for share in (INPUT_DROPOUT, HIDDEN_DROPOUT, HIDDEN_DROPOUT))

    def forward(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] of the size given -> features [n, width]."""
        outputs = self.dropouts[0](images.flatten(1))
        for layer, dropout in zip(self.layers, self.dropouts[1:], strict=True):
            outputs = dropout(functional.relu(layer(outputs)))
        return outputs
