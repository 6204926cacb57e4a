"""Dropout drawn four units at a time."""

from __future__ import annotations

import pytest
import torch

from par.networks.dropout import Dropout


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_units_are_dropped_and_the_others_scaled(p):
    torch.manual_seed(0)
    outputs = Dropout(p)(torch.ones(501, 203))
    n = outputs.numel()
    n_dropped = int((outputs == 0).sum())
    assert abs(n_dropped - p * n) <= 5 * (p * (1 - p) * n) ** 0.5
    if p < 1:
        assert outputs.max() == outputs[outputs > 0].min() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_every_unit_of_a_draw_is_dropped_as_often_and_by_itself():
    torch.manual_seed(0)
    dropped = (Dropout(0.25)(torch.ones(100_000, 4)) == 0).double()
    assert torch.allclose(dropped.mean(dim=0), torch.tensor(0.25, dtype=torch.float64), atol=0.007)
    assert (torch.corrcoef(dropped.T) - torch.eye(4, dtype=torch.float64)).abs().max() < 0.016


def test_gradients_are_those_of_the_mask_and_the_layout_does_not_matter():
    torch.manual_seed(0)
    images = torch.randn(5, 6, 7, 3).to(memory_format=torch.channels_last).requires_grad_()
    outputs = Dropout(0.5)(images)
    assert outputs.stride() == images.stride()
    (gradient,) = torch.autograd.grad(outputs.sum(), images)
    assert torch.equal(outputs, images * gradient) and set(gradient.unique().tolist()) == {0.0, 2.0}
    torch.manual_seed(0)
    sliced = Dropout(0.5)(torch.randn(5, 6, 7, 3)[:, :, ::2])
    assert sliced.shape == (5, 6, 4, 3)


def test_a_seed_decides_and_evaluation_drops_nothing():
    layer, features = Dropout(0.5), torch.randn(64, 10)
    torch.manual_seed(3)
    first, other = layer(features), layer(features)
    torch.manual_seed(3)
    assert torch.equal(layer(features), first) and not torch.equal(other, first)
    assert layer.eval()(features) is features
