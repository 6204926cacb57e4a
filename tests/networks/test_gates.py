"""Where task masks apply."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from par.networks.alexnet import AlexNet
from par.networks.gates import gates_of
from par.networks.mlp import Mlp
from par.networks.resnet import LightResNet

TRUNKS = {
    "alexnet": lambda: AlexNet((32, 32), 0.05),
    "mlp": lambda: Mlp((8, 8), 7),
    "resnet": lambda: LightResNet(6),
}


def trunk_and_images(name):
    torch.manual_seed(0)
    return TRUNKS[name]().eval(), torch.randn(4, 3, 8, 8) if name == "mlp" else torch.randn(4, 3, 32, 32)


@pytest.mark.parametrize(("name", "n_gates", "n_layers"), [("alexnet", 5, 5), ("mlp", 2, 2), ("resnet", 17, 20)])
def test_open_gates_change_nothing_and_every_layer_is_connected(name, n_gates, n_layers):
    trunk, images = trunk_and_images(name)
    gates = gates_of(trunk)
    assert len(gates.modules) == len(gates.sizes) == n_gates
    layers = [module for module in trunk.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert {id(c.layer) for c in gates.connections} == {id(layer) for layer in layers} and len(layers) == n_layers
    ones = [torch.ones(size) for size in gates.sizes]
    assert torch.equal(gates.features(trunk, images, ones), trunk(images))


@pytest.mark.parametrize("name", TRUNKS)
def test_weights_that_touch_a_closed_unit_do_not_matter(name):
    """The claim behind HAT's gradient mask: outputs depend on weights between open units alone."""
    trunk, images = trunk_and_images(name)
    gates = gates_of(trunk)
    masks = [(torch.rand(size, generator=torch.Generator().manual_seed(1)) < 0.6).float() for size in gates.sizes]
    before = gates.features(trunk, images, masks)
    assert before.abs().sum() > 0
    with torch.no_grad():
        for connection in gates.connections:
            weight, bias = gates.between(connection, masks)
            connection.layer.weight.add_((1 - weight) * torch.randn_like(connection.layer.weight))
            if connection.layer.bias is not None:
                connection.layer.bias.add_(1 - bias)
    assert torch.allclose(gates.features(trunk, images, masks), before, atol=1e-6)
    ones = [torch.ones(size) for size in gates.sizes]
    assert not torch.allclose(gates.features(trunk, images, ones), trunk_and_images(name)[0](images), atol=1e-2)


def test_masks_act_on_the_units_after_the_nonlinearity():
    trunk, images = trunk_and_images("mlp")
    gates, masks = gates_of(trunk), [torch.rand(7), torch.rand(7)]
    first, second = trunk.layers
    expected = second(first(images.flatten(1)).relu() * masks[0]).relu() * masks[1]
    assert torch.allclose(gates.features(trunk, images, masks), expected, atol=1e-6)


def test_hooks_are_gone_afterwards():
    trunk, images = trunk_and_images("alexnet")
    before = trunk(images)
    gates = gates_of(trunk)
    assert not torch.equal(gates.features(trunk, images, [torch.full((size,), 0.5) for size in gates.sizes]), before)
    assert torch.equal(trunk(images), before)
