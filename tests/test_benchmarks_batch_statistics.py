"""benchmarks/batch_statistics.py against a slow, obvious version."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.batch_statistics import accuracy_in_batches
from par import seeding
from par.networks.task_norm import replace_norms, task_norms
from par.training import trainer
from par.training.images import Images


class Tiny(nn.Module):
    """A norm of its own for each of two tasks over three colours, whose mean is a class each."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.BatchNorm2d(3))
        replace_norms(self.trunk, shared_affine=True)
        (self.norm,) = task_norms(self.trunk)
        for task_id in (0, 1):
            self.norm.add(task_id)

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        self.norm.active = str(task_id)
        return self.trunk(images).mean(dim=(2, 3))


@pytest.fixture
def network() -> Tiny:
    network = Tiny().eval().requires_grad_(False)
    for task_id in ("0", "1"):
        network.norm.by_task[task_id].running_mean.copy_(torch.tensor([5.0, -5.0, 0.0]))  # all images are of class 1
    return network


@pytest.fixture
def images() -> Images:
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=50)
    pixels = generator.integers(100, size=(50, 3, 4, 4))
    pixels[np.arange(50), labels] += 60
    return Images(pixels.astype(np.uint8), labels, [0.1, 0.2, 0.3], [0.2, 0.2, 0.2])


@pytest.mark.parametrize("size", [7, 16])
def test_each_batch_is_normalised_by_itself(network, images, size):
    right = 0
    for rows in trainer.batches(50, size, seeding.torch_generator("batch statistics")):
        batch = images.batch(rows).double()
        mean = batch.mean(dim=(0, 2, 3), keepdim=True)
        variance = ((batch - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
        normalised = (batch - mean) / (variance + 1e-5).sqrt()
        right += int((normalised.mean(dim=(2, 3)).argmax(1) == images.labels[rows]).sum())
    assert accuracy_in_batches(network, 1, images, size) == right / 50
    assert right / 50 > 0.8


def test_the_statistics_kept_stay_and_count_again_afterwards(network, images):
    before = {name: tensor.clone() for name, tensor in network.state_dict().items() if "num_batches" not in name}
    by_kept = trainer.accuracy(lambda batch: network.logits(batch, 1), images)
    assert by_kept == float((images.labels == 1).double().mean())
    accuracy_in_batches(network, 1, images, 16)
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())
    assert trainer.accuracy(lambda batch: network.logits(batch, 1), images) == by_kept
