"""How many images are predicted at once."""

from __future__ import annotations

import pytest
import torch

from par.training.memory import BYTES_PER_PIXEL, evaluation_batch, images_at_once

GB = 10**9


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (84, 84)])
def test_on_a_cpu_64(size):
    assert evaluation_batch(torch.device("cpu"), size) == 64


@pytest.mark.parametrize(
    "size, free, total, expected",
    [
        ((32, 32), 140 * GB, 141 * GB, 1024),
        ((32, 32), 23 * GB, 24 * GB, 128),
        ((84, 84), 140 * GB, 141 * GB, 128),
        ((84, 84), 23 * GB, 24 * GB, 32),
        ((84, 84), 12 * GB, 24 * GB, 32),  # another job has half of the card: the same batch
        ((84, 84), 1 * GB, 24 * GB, 8),
        ((84, 84), 0, 24 * GB, 1),
        ((8, 8), 23 * GB, 24 * GB, 1024),
    ],
)
def test_on_a_gpu_by_image_size_and_memory(size, free, total, expected):
    assert images_at_once(size, free, total) == expected


def test_a_batch_fits_where_one_image_does():
    for free in range(10**8, 10**10, 7 * 10**8):
        for pixels in (16, 32, 84, 224):
            count = images_at_once((pixels, pixels), free, 10**10)
            assert count & (count - 1) == 0
            assert count == 1 or count * BYTES_PER_PIXEL * pixels**2 <= free / 2
