"""The memory of past images: what it keeps, and what it gives back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from par.methods.bases.memory import Memory, Recall, reservoir, rows_per_class
from par.training.images import Images


def numbered(n: int, augment=(), first: int = 0, labels=None) -> Images:
    """Images of 4 x 4 pixels whose every pixel is their number."""
    pixels = np.arange(first, first + n, dtype=np.uint8)[:, None, None, None].repeat(3, 1).repeat(4, 2).repeat(4, 3)
    return Images(pixels, np.zeros(n) if labels is None else labels, (0.5,) * 3, (0.25,) * 3, augment)


def test_ring_keeps_exactly_k_of_every_class_and_all_of_a_smaller_one():
    labels = torch.tensor([0] * 10 + [1] * 3 + [2] * 7)
    rows = rows_per_class(labels, 5, torch.Generator().manual_seed(0))
    assert torch.bincount(labels[rows]).tolist() == [5, 3, 5] and len(rows.unique()) == 13


def test_ring_keeps_every_image_of_a_class_equally_often():
    labels, generator = torch.arange(12) % 2, torch.Generator().manual_seed(0)
    counts = torch.zeros(12)
    for _ in range(2000):
        counts[rows_per_class(labels, 2, generator)] += 1
    assert torch.all((counts / 2000 - 1 / 3).abs() < 0.05)  # 4.7 standard deviations


def test_reservoir_keeps_every_image_of_three_tasks_equally_often():
    sizes, capacity, generator = (20, 5, 15), 10, torch.Generator().manual_seed(0)
    counts, runs = torch.zeros(sum(sizes)), 3000
    for _ in range(runs):
        held, seen = torch.zeros(0, dtype=torch.int64), 0
        for size in sizes:
            staying, entering = reservoir(len(held), seen, size, capacity, generator)
            held, seen = torch.cat([held[staying], seen + entering]), seen + size
            assert len(held) == min(capacity, seen) == len(held.unique())
        counts[held] += 1
    assert torch.all((counts / runs - capacity / sum(sizes)).abs() < 0.04)  # 5 standard deviations


def test_reservoir_that_has_grown_is_full():
    staying, entering = reservoir(10, 20, 20, 30, torch.Generator().manual_seed(0))
    assert len(staying) + len(entering) == 30 and len(staying) <= 10


def test_original_pixels_are_stored_whatever_the_padding():
    memory = Memory((4, 4))
    memory.extend(4)
    memory.store(numbered(10, ("crop",)), torch.tensor([7, 2, 5]), 0)
    assert memory.pixels.dtype == torch.uint8 and memory.pixels.is_contiguous()
    assert torch.all(memory.pixels[:3] == torch.tensor([7, 2, 5])[:, None, None, None])
    assert memory.positions.tolist() == [0, 0, 0, -1] and len(memory) == 3


def test_kept_images_make_room_for_others():
    memory = Memory((4, 4))
    memory.extend(4)
    memory.store(numbered(4), torch.arange(4), 0)
    memory.keep(torch.tensor([3, 1]))
    memory.store(numbered(2, first=10), torch.tensor([1, 0]), 1)
    assert memory.pixels[:, 0, 0, 0].tolist() == [11, 1, 10, 3] and memory.positions.tolist() == [1, 0, 1, 0]
    with pytest.raises(ValueError, match="0 empty slots for 1 images"):
        memory.store(numbered(1), torch.tensor([0]), 2)


def test_every_image_is_normalised_by_its_own_task():
    memory = Memory((4, 4))
    memory.extend(6)
    records = [{"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}, {"mean": [0.0, 0.4, 0.8], "std": [1.0, 0.1, 0.2]}]
    memory.store(numbered(3, labels=[0, 1, 2]), torch.arange(3), 0)
    memory.store(numbered(2, first=100, labels=[3, 4]), torch.arange(2), 1)
    recall = Recall(memory, records, (), torch.Generator().manual_seed(0))
    images, labels, positions = recall.batch(recall.draw(5))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert set(positions.tolist()) == {0, 1}
    for image, label, position in zip(images, labels, positions, strict=True):
        number = label if position == 0 else 97 + label
        mean, std = (torch.tensor(records[position][name]) for name in ("mean", "std"))
        torch.testing.assert_close(image, ((number / 255 - mean) / std)[:, None, None].expand(3, 4, 4))


def test_draws_are_uniform_with_replacement_and_at_most_as_many_as_there_are():
    memory, record = Memory((4, 4)), {"mean": [0.0] * 3, "std": [1.0] * 3}
    memory.extend(8)
    memory.store(numbered(6, labels=np.arange(6)), torch.arange(6), 0)
    recall = Recall(memory, [record], (), torch.Generator().manual_seed(0))
    assert len(recall.batch(recall.draw(4))[1]) == 4
    labels = torch.cat([recall.batch(recall.draw(64))[1] for _ in range(1000)])
    assert len(labels) == 6000
    assert torch.all((torch.bincount(labels) / 6000 - 1 / 6).abs() < 0.02)  # 4 standard deviations
    assert len(labels[:6].unique()) < 6


def test_images_are_augmented_like_the_current_data():
    memory, record = Memory((4, 4)), {"mean": [0.0] * 3, "std": [1.0] * 3}
    memory.extend(1)
    memory.store(numbered(1, first=255), torch.tensor([0]), 0)
    recall = Recall(memory, [record], ("crop",), torch.Generator().manual_seed(0))
    borders = {float(recall.batch(recall.draw(1))[0].sum()) for _ in range(30)}
    assert len(borders) > 1 and max(borders) == 48
