"""Images as one uint8 tensor on the device; augmentation and normalisation of whole batches.

Pixels are kept NHWC and already padded, so that crop and flip are a single gather whose result is a channels_last
batch without a further copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        self._factor, self._shift = 1 / (255 * self.std), self.mean / self.std

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
        drawn = self.draw(len(rows), generator) if generator is not None else {}
        device = self.pixels.device
        return self.augmented(rows.to(device), {name: numbers.to(device) for name, numbers in drawn.items()})

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """What chance decides in the augmentation of a batch of ``count`` images: for :meth:`augmented`, on the CPU.

        ``mirrored`` bool [b], ``offsets`` int64 [2, b] (y and x), ``brightness`` float32 [b]; without what is not
        among the augmentations.
        """
        drawn = {}
        if "flip" in self.augment:
            drawn["mirrored"] = torch.rand(count, generator=generator) < 0.5
        if "crop" in self.augment:
            drawn["offsets"] = torch.randint(0, 2 * self.padding + 1, (2, count), generator=generator)
        if "brightness" in self.augment:
            drawn["brightness"] = 1 + BRIGHTNESS * (2 * torch.rand(count, generator=generator) - 1)
        return drawn

    def augmented(self, rows: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        """As :meth:`batch`, with what :meth:`draw` drew (nothing: as they are); all of it on the images' device."""
        (height, width), top = self.size, self.padding
        if "mirrored" in drawn or "offsets" in drawn:
            pixels = self._crop_and_flip(rows, drawn.get("mirrored"), drawn.get("offsets"))
        elif self.padding:
            pixels = self.pixels[rows, top : top + height, top : top + width]
        else:
            pixels = self.pixels[rows]
        images = pixels.to(torch.float32)
        if "brightness" in drawn:
            images = images.mul_(drawn["brightness"][:, None, None, None]).clamp_(max=255.0)
        images = images.mul_(self._factor).sub_(self._shift)
        return images.permute(0, 3, 1, 2)

    def _crop_and_flip(self, rows: Tensor, mirrored: Tensor | None, offsets: Tensor | None) -> Tensor:
        """uint8 [b, H, W, 3]: each image from its own offset, half of them mirrored."""
        (height, width), count, device = self.size, len(rows), self.pixels.device
        y = torch.arange(height, device=device).expand(count, height)
        x = torch.arange(width, device=device).expand(count, width)
        if mirrored is not None:
            x = torch.where(mirrored[:, None], width - 1 - x, x)
        if offsets is not None:
            y, x = y + offsets[0, :, None], x + offsets[1, :, None]
        # One gather of rows of three bytes from a flat view: a third of the time of indexing by three tensors.
        padded_height, padded_width = self.pixels.shape[1:3]
        flat = (rows[:, None, None] * padded_height + y[:, :, None]) * padded_width + x[:, None, :]
        return self.pixels.view(-1, 3)[flat.view(-1)].view(count, height, width, 3)
