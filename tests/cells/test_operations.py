from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from par.cells import operations
from par.cells.genotype import GENOTYPE_OPERATIONS
from par.cells.operations import FactorisedReduction, PointwiseConv, State, make_operation

CHANNELS = 4


@pytest.fixture
def images() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, CHANNELS, 7, 10).contiguous(memory_format=torch.channels_last)


def normalise(x: torch.Tensor, norm: torch.nn.BatchNorm2d) -> torch.Tensor:
    """BatchNorm in train mode, written out."""
    mean = x.mean(dim=(0, 2, 3), keepdim=True)
    variance = x.var(dim=(0, 2, 3), keepdim=True, unbiased=False)
    y = (x - mean) / torch.sqrt(variance + norm.eps)
    return y if norm.weight is None else y * norm.weight[:, None, None] + norm.bias[:, None, None]


def windows(x: torch.Tensor, stride: int, padding_value: float) -> torch.Tensor:
    """All 3x3 windows [n, c, h, w, 9] of ``x`` padded by one pixel."""
    padded = functional.pad(x, (1, 1, 1, 1), value=padding_value)
    return padded.unfold(2, 3, stride).unfold(3, 3, stride).flatten(start_dim=4)


def depthwise_separable(x: torch.Tensor, layers, stride: int, dilation: int) -> torch.Tensor:
    depthwise, pointwise, norm = layers
    channels = [
        functional.conv2d(x[:, i : i + 1], depthwise.weight[i : i + 1], None, stride, dilation, dilation)
        for i in range(x.shape[1])
    ]
    return normalise(torch.einsum("oi,nihw->nohw", pointwise.weight[:, :, 0, 0], torch.cat(channels, dim=1)), norm)


@pytest.mark.parametrize("stride", [1, 2])
def test_max_pool_ignores_padding(images, stride):
    expected = windows(images - 100, stride, -torch.inf).amax(dim=-1)
    assert torch.equal(make_operation("max_pool_3x3", CHANNELS, stride, True)(images - 100), expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_avg_pool_counts_pixels_only(images, stride):
    count = windows(torch.ones_like(images), stride, 0.0).sum(dim=-1)
    expected = windows(images, stride, 0.0).sum(dim=-1) / count
    assert count.min() == 4 and count.max() == 9
    torch.testing.assert_close(make_operation("avg_pool_3x3", CHANNELS, stride, True)(images), expected)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("affine", [True, False])
def test_sep_conv(images, stride, affine):
    operation = make_operation("sep_conv_3x3", CHANNELS, stride, affine)
    first, second = operation.layers[:3], operation.layers[4:]
    hidden = depthwise_separable(images.relu(), first, stride, 1)
    expected = depthwise_separable(hidden.relu(), second, 1, 1)
    torch.testing.assert_close(State(images).through(operation), expected)
    assert sum(p.numel() for p in operation.parameters()) == 2 * (9 * CHANNELS + CHANNELS**2 + 2 * CHANNELS * affine)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("affine", [True, False])
def test_dil_conv(images, stride, affine):
    operation = make_operation("dil_conv_3x3", CHANNELS, stride, affine)
    expected = depthwise_separable(images.relu(), operation.layers, stride, 2)
    torch.testing.assert_close(State(images).through(operation), expected)
    assert sum(p.numel() for p in operation.parameters()) == 9 * CHANNELS + CHANNELS**2 + 2 * CHANNELS * affine


def test_skip_is_identity_without_relu(images):
    assert torch.equal(State(images).through(make_operation("skip_connect", CHANNELS, 1, True)), images)


def test_pointwise_conv(images):
    operation = PointwiseConv(CHANNELS, 6, affine=True)
    convolution, norm = operation.layers
    expected = normalise(torch.einsum("oi,nihw->nohw", convolution.weight[:, :, 0, 0], images.relu()), norm)
    torch.testing.assert_close(State(images).through(operation), expected)


@pytest.mark.parametrize("height, width", [(8, 6), (7, 6), (8, 5), (7, 7), (1, 1), (21, 42)])
def test_factorised_reduction_takes_even_and_odd_pixels(height, width):
    torch.manual_seed(0)
    images = torch.randn(2, CHANNELS, height, width)
    operation = FactorisedReduction(CHANNELS, 6)
    even = images.relu()[:, :, ::2, ::2]
    odd = torch.zeros_like(even)  # an odd size has no last odd pixel: zero
    odd[:, :, : height // 2, : width // 2] = images.relu()[:, :, 1::2, 1::2]
    weights = [half.weight[:, :, 0, 0] for half in (operation.even, operation.odd)]
    expected = torch.cat([torch.einsum("oi,nihw->nohw", w, x) for w, x in zip(weights, (even, odd))], dim=1)
    torch.testing.assert_close(State(images).through(operation), expected)


@pytest.mark.parametrize("height, width", [(8, 6), (7, 6), (7, 5)])
def test_factorised_reduction_gradients(height, width):
    images = torch.randn(2, 4, height, width, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(FactorisedReduction(4, 4).double(), images)


def test_factorised_reduction_has_no_unused_batch_norm():
    assert sum(p.numel() for p in FactorisedReduction(64, 64).parameters()) == 64 * 64


@pytest.mark.parametrize("size", [7, 14, 16, 21, 28, 32, 42, 84])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", GENOTYPE_OPERATIONS)
def test_sizes_and_layout(name, stride, size):
    images = torch.randn(2, CHANNELS, size, size).contiguous(memory_format=torch.channels_last)
    operation = make_operation(name, CHANNELS, stride, True).to(memory_format=torch.channels_last)
    output = State(images).through(operation)
    assert output.shape == (2, CHANNELS, -(-size // stride), -(-size // stride))
    assert output.is_contiguous(memory_format=torch.channels_last)


def test_relu_is_computed_once_per_state_and_is_bit_equal(images, monkeypatch):
    calls = []

    def counted_relu(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.relu(x)

    monkeypatch.setattr(operations, "functional", SimpleNamespace(relu=counted_relu))
    state = State(images)
    for name in ("sep_conv_3x3", "dil_conv_3x3", "skip_connect"):
        operation = make_operation(name, CHANNELS, 2, True)
        assert torch.equal(state.through(operation), operation(torch.relu(images)))
    assert calls == [1]


def test_pooling_alone_computes_no_relu(images, monkeypatch):
    monkeypatch.setattr(operations, "functional", SimpleNamespace(relu=lambda x: pytest.fail("a ReLU nobody needs")))
    State(images).through(make_operation("max_pool_3x3", CHANNELS, 1, True))


def test_operations_leave_the_state_unchanged(images):
    state, before = State(images), images.clone()
    for name in GENOTYPE_OPERATIONS:
        state.through(make_operation(name, CHANNELS, 1, True))
    assert torch.equal(state.raw, before)
    assert torch.equal(state.activated, before.relu())


@pytest.mark.parametrize("name", ["none", "sep_conv_5x5"])
def test_unknown_operation(name):
    with pytest.raises(ValueError, match=f"Operation '{name}' has no module; choose one of"):
        make_operation(name, CHANNELS, 1, True)
