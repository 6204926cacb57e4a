"""How many images are predicted at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Small batches stay in a CPU's cache: an expert of 64 channels does 115 images a CPU second in batches of 64 with
# 1.0 GB resident, 73 in batches of 1024 with 5.9 GB (sources.md#cells).
ON_CPU = 64
LARGEST = 1024
BYTES_PER_PIXEL = 6000  # of an image in that expert, in float32: what 5.9 GB for 1024 images of 32x32 come to


def evaluation_batch(device: torch.device, size: Sequence[int]) -> int:
    """Images of ``size`` (height, width) that are predicted at once on ``device``."""
    if device.type != "cuda":
        return ON_CPU
    free, total = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # ours, though not free
    return images_at_once(size, free + idle, total)


def images_at_once(size: Sequence[int], free: int, total: int) -> int:
    """The largest power of two up to :data:`LARGEST` whose images need at most a sixteenth of a card's ``total`` bytes.

    So jobs that share a card fit beside each other, and the batch, which decides how sums are rounded, is the same in
    every run. Only where half of the ``free`` bytes is less does that decide. At least one image.
    """
    n_images = min(total // 16, free // 2) // (BYTES_PER_PIXEL * size[0] * size[1])
    return min(LARGEST, 1 << max(1, n_images).bit_length() - 1)
