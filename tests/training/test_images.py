"""Batches against an obvious per-image version."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from par.training.images import BRIGHTNESS, Images

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, 3, 16, 16), dtype=np.uint8)


def images(pixels, augment=()):
    return Images(pixels, np.arange(len(pixels)) % 3, MEAN, STD, augment)


def normalised(pixels: np.ndarray) -> np.ndarray:
    mean, std = (np.array(values)[:, None, None] for values in (MEAN, STD))
    return (pixels / 255 - mean) / std


def test_without_a_generator_the_batch_is_the_normalised_image(pixels):
    for augment in ((), ("crop", "flip", "brightness")):
        batch = images(pixels, augment).batch(torch.tensor([4, 0]))
        np.testing.assert_allclose(batch, normalised(pixels[[4, 0]]), atol=1e-6)
        assert batch.is_contiguous(memory_format=torch.channels_last)


def test_crop_and_flip_take_a_window_of_the_black_padded_image(pixels):
    size, padding = 16, 2
    batch = images(pixels, ("crop", "flip")).batch(torch.arange(6).repeat(50), torch.Generator().manual_seed(0))
    assert batch.is_contiguous(memory_format=torch.channels_last)
    found = set()
    for row, image in enumerate(batch.numpy()):
        padded = np.pad(pixels[row % 6], ((0, 0), (padding, padding), (padding, padding)))
        matches = {
            (top, left, mirrored)
            for top in range(2 * padding + 1)
            for left in range(2 * padding + 1)
            for mirrored in (False, True)
            if np.allclose(
                image,
                normalised(padded[:, top : top + size, left : left + size][:, :, :: -1 if mirrored else 1]),
                atol=1e-5,
            )
        }
        assert len(matches) == 1
        found |= matches
    assert len(found) == 2 * (2 * padding + 1) ** 2  # every offset, mirrored and not, occurs in 300 draws


def test_brightness_scales_and_never_exceeds_white():
    white_and_grey = np.full((2, 3, 8, 8), 255, dtype=np.uint8)
    white_and_grey[1] = 100
    source = Images(white_and_grey, [0, 1], (0, 0, 0), (1, 1, 1), ("brightness",))
    batch = source.batch(torch.tensor([0, 1]).repeat(200), torch.Generator().manual_seed(1))
    white, grey = batch[0::2, 0, 0, 0], batch[1::2, 0, 0, 0] * 255 / 100
    assert float(white.max()) == pytest.approx(1.0) and float(white.min()) >= 1 - BRIGHTNESS - 1e-6
    assert 1 + 0.9 * BRIGHTNESS < float(grey.max()) <= 1 + BRIGHTNESS + 1e-6


def test_equal_generators_give_equal_batches_and_a_subset_its_rows(pixels):
    source, rows = images(pixels, ("crop", "flip", "brightness")), torch.tensor([1, 5, 2])
    first, second = (source.batch(rows, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    part = source.subset(rows)
    assert torch.equal(part.batch(torch.arange(3)), source.batch(rows))
    assert part.labels.tolist() == [1, 2, 2] and len(part) == 3
