"""Images as one uint8 tensor on the device; augmentation and normalisation of whole batches.

Pixels are kept NHWC and already padded, so that crop and flip are a single gather whose result is a channels_last
batch without a further copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

BRIGHTNESS = 63 / 255  # largest relative change of the "brightness" augmentation (PAR's loader, sources.md#cifar)


class Images:
    """One split of one task, ready to be drawn from in batches.

    Args:
        pixels: uint8 [n, 3, H, W].
        labels: integers [n] in 0..n_classes-1.
        mean, std: per-channel statistics of pixels in [0, 1] used to normalise.
        augment: names among ``crop`` (pad by an eighth of the size, crop at random), ``flip``, ``brightness``.
        device: where the pixels live.
    """

    def __init__(
        self,
        pixels: np.ndarray | Tensor,
        labels: np.ndarray | Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Sequence[str] = (),
        device: torch.device | str = "cpu",
    ):
        pixels = torch.as_tensor(np.array(pixels) if isinstance(pixels, np.ndarray) else pixels)
        self.augment = tuple(augment)
        self.size = (pixels.shape[2], pixels.shape[3])
        self.padding = max(1, min(self.size) // 8) if "crop" in self.augment else 0
        padded = torch.nn.functional.pad(pixels, [self.padding] * 4).permute(0, 2, 3, 1)
        self.pixels = padded.contiguous().to(device)
        labels = np.array(labels) if isinstance(labels, np.ndarray) else labels  # a copy: torch warns of read-only maps
        self.labels = torch.as_tensor(labels, dtype=torch.int64).to(device)
        self.mean = torch.tensor(mean, dtype=torch.float32, device=device)
        self.std = torch.tensor(std, dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: Tensor) -> Images:
        """The images ``rows`` (int64 [m]) as a set of their own."""
        part = object.__new__(Images)
        part.__dict__.update(self.__dict__)
        rows = rows.to(self.labels.device)
        part.pixels, part.labels = self.pixels[rows], self.labels[rows]
        return part

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The images ``rows`` (int64 [b]) as a normalised float32 [b, 3, H, W] batch in channels_last.

        With a ``generator`` (on the CPU) they are augmented, without one they are not.
        """
        height, width = self.size
        draw = generator is not None
        if generator is not None and self.augment:
            pixels = self._crop_and_flip(rows, generator)
        elif self.padding:
            top = self.padding
            pixels = self.pixels[rows.to(self.pixels.device), top : top + height, top : top + width]
        else:
            pixels = self.pixels[rows.to(self.pixels.device)]
        images = pixels.to(torch.float32)
        if draw and "brightness" in self.augment:
            factor = 1 + BRIGHTNESS * (2 * torch.rand(len(rows), generator=generator) - 1)
            images = images.mul_(factor.to(images.device)[:, None, None, None]).clamp_(max=255.0)
        images = images.mul_(1 / (255 * self.std)).sub_(self.mean / self.std)
        return images.permute(0, 3, 1, 2)

    def _crop_and_flip(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 [b, H, W, 3]: each image from its own offset, half of them mirrored."""
        (height, width), count, device = self.size, len(rows), self.pixels.device
        y = torch.arange(height).expand(count, height)
        x = torch.arange(width).expand(count, width)
        if "flip" in self.augment:
            mirrored = torch.rand(count, generator=generator) < 0.5
            x = torch.where(mirrored[:, None], width - 1 - x, x)
        if "crop" in self.augment:
            offsets = torch.randint(0, 2 * self.padding + 1, (2, count), generator=generator)
            y, x = y + offsets[0, :, None], x + offsets[1, :, None]
        # One gather of rows of three bytes from a flat view: a third of the time of indexing by three tensors.
        padded_height, padded_width = self.pixels.shape[1:3]
        flat = (rows[:, None, None] * padded_height + y[:, :, None]) * padded_width + x[:, None, :]
        return self.pixels.view(-1, 3)[flat.to(device).view(-1)].view(count, height, width, 3)
