"""Pure functions on uint8 images ``[n, H, W, 3]`` (RGB, channels last) and on class lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from PIL import Image

PALETTE = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
Item = TypeVar("Item")


def grey_to_rgb(images: np.ndarray) -> np.ndarray:
    """Grey images ``[n, H, W]`` as ``[n, H, W, 3]``, the grey value in all three channels."""
    return np.repeat(images[..., None], 3, axis=3)


def fit(image: Image.Image, size: int, resample: str = "bilinear") -> Image.Image:
    """``image``, resized so that its shorter side has ``size`` pixels, then cropped to the square in its centre."""
    width, height = image.size
    scale = size / min(width, height)
    width, height = max(size, int(width * scale)), max(size, int(height * scale))
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.resize((width, height), FILTERS[resample]).crop((left, top, left + size, top + size))


def resize(images: np.ndarray, size: int, resample: str = "bilinear") -> np.ndarray:
    """Images ``[n, H, W, 3]`` as ``[n, size, size, 3]``; see :func:`fit`. The array itself if it has that size.

    CTrL enlarges MNIST with torch's bilinear filter and cuts decimals off; PIL rounds: at most one grey level apart.
    """
    if images.shape[1:3] == (size, size):
        return images
    resized = np.empty((len(images), size, size, 3), np.uint8)
    for row, image in enumerate(images):
        resized[row] = np.asarray(fit(Image.fromarray(image), size, resample))
    return resized


def colour_background(images: np.ndarray, colour: str) -> np.ndarray:
    """CTrL's coloured background: ``x + (max(x) - x) * colour / 255``, the maximum over all images (sources.md#ctrl).

    The channels of ``colour`` (a key of :data:`PALETTE`) become constant, the others keep the grey image.
    """
    coloured = images.copy()
    coloured[..., np.array(PALETTE[colour]) == 255] = images.max()
    return coloured


def rotate(classes: Sequence[Item], by: int = 1) -> tuple[Item, ...]:
    """Permuted labels: label ``k`` goes to the class that had label ``k - by`` (S_out, sources.md#ctrl)."""
    return tuple(classes[(label - by) % len(classes)] for label in range(len(classes)))


def flip_and_crop(images: np.ndarray, generator: np.random.Generator, pad: int = 4) -> np.ndarray:
    """Each image mirrored with probability 1/2, then a random crop of its size from its black-padded frame."""
    n, (height, width) = len(images), images.shape[1:3]
    mirrored = np.where(generator.random(n)[:, None, None, None] < 0.5, images[:, :, ::-1], images)
    padded = np.pad(mirrored, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows = generator.integers(0, 2 * pad + 1, n)[:, None] + np.arange(height)
    columns = generator.integers(0, 2 * pad + 1, n)[:, None] + np.arange(width)
    return padded[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
