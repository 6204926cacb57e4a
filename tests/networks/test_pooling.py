"""Plain pooling against torch's adaptive pooling."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from par.networks import pooling

SIZES = list(itertools.product((1, 2, 3, 6, 9), (1, 2, 5, 6)))


def maps(height: int, width: int, layout: torch.memory_format) -> torch.Tensor:
    """Two leaves of equal values; ties of zeros, as behind a ReLU."""
    values = torch.randn(3, 16, height, width, generator=torch.Generator().manual_seed(height)).relu()
    return values.contiguous(memory_format=layout).requires_grad_()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("height, width", SIZES)
def test_the_maximum_and_its_gradient_are_adaptive_poolings_bit_for_bit(height, width, layout):
    ours, theirs = maps(height, width, layout), maps(height, width, layout)
    pooled = pooling.max_of_quarters(ours)
    expected = functional.adaptive_max_pool2d(theirs, [min(2, height), min(2, width)])
    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    pooled.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(pooled, expected) and torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("height, width", SIZES)
def test_the_mean_on_other_devices_is_that_on_a_cpu(height, width):
    """Up to the order of sums; a CPU's own is adaptive pooling itself."""
    ours, theirs = maps(height, width, torch.channels_last), maps(height, width, torch.channels_last)
    pooled, expected = pooling._mean_of_windows(ours), pooling.mean_of_quarters(theirs)
    assert torch.equal(expected, functional.adaptive_avg_pool2d(theirs, 2))
    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    pooled.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(pooled, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)
