"""The networks of HAT, GPM and CAT: sizes in sources.md#alexnet and image sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from par.networks.alexnet import AlexNet
from par.networks.mlp import Mlp
from par.schema import ConfigError

SIZES = [16, 28, 32, 64, 84]


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("width", "norm", "millions"),
    [(1, False, 6.503872), (1, True, 6.508416), (2.5, False, 40.62064), (6.5, False, 274.5)],
)
def test_the_alexnet_has_the_published_sizes(width, norm, millions):
    with torch.device("meta"):
        trunk = AlexNet((32, 32), width, norm)
    assert count(trunk) / 1e6 == pytest.approx(millions, rel=1e-12 if width < 6 else 1e-3)
    assert trunk.n_features == 2048 * width


def test_norm_takes_the_place_of_biases():
    with_norm, without = AlexNet((32, 32), 0.05, norm=True), AlexNet((32, 32), 0.05)
    assert all(layer.bias is None for layer in with_norm.layers) and all(
        layer.bias is not None for layer in without.layers
    )
    assert all(isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) for norm in with_norm.norms)
    assert not any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in without.modules())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("norm", [True, False])
def test_any_image_size_passes(size, norm):
    trunk = AlexNet((size, size), 0.05, norm).eval()
    images = torch.randn(3, 3, size, size)
    features = trunk(images)
    assert features.shape == (3, trunk.n_features) and len(features.unique(dim=0)) == 3
    assert torch.allclose(trunk(images[:1]), features[:1], atol=1e-5)


@pytest.mark.parametrize("norm", [True, False])
def test_relu_may_stand_behind_dropout_and_pooling(norm):
    """Where the papers have it: the same features and gradients."""
    found = []
    for forward in (AlexNet.forward, by_the_papers):
        torch.manual_seed(0)
        trunk, images = AlexNet((32, 32), 0.1, norm).train(), torch.randn(6, 3, 32, 32).requires_grad_()
        features = forward(trunk, images)
        (features * torch.randn_like(features)).sum().backward()
        found.append([features, images.grad, *(parameter.grad for parameter in trunk.parameters())])
    assert all(map(torch.equal, *found)) and found[0][0].count_nonzero() > 100


def by_the_papers(trunk, images):
    outputs = images
    for number, layer in enumerate(trunk.layers):
        outputs = trunk.dropouts[number](functional.relu(trunk.norms[number](layer(outputs))))
        if outputs.dim() == 4:
            outputs = functional.max_pool2d(outputs, 2)
        if number == 2:
            outputs = outputs.flatten(1)
    return outputs


def test_images_need_not_be_square():
    trunk = AlexNet((16, 40), 0.05)
    assert trunk(torch.zeros(2, 3, 16, 40)).shape == (2, trunk.n_features)


@pytest.mark.parametrize(("size", "n_inputs"), [(16, 256), (28, 1024), (32, 1024), (64, 1024), (84, 1024)])
def test_the_first_fully_connected_layer_follows_the_image_size(size, n_inputs):
    with torch.device("meta"):
        trunk = AlexNet((size, size))
    assert trunk.layers[3].in_features == n_inputs


def test_at_32_pixels_it_is_the_published_network():
    trunk = AlexNet((32, 32), 0.05).eval()
    outputs = images = torch.randn(2, 3, 32, 32)
    for layer in trunk.layers[:3]:
        outputs = nn.functional.max_pool2d(layer(outputs).relu(), 2)
    outputs = outputs.flatten(1)
    for layer in trunk.layers[3:]:
        outputs = layer(outputs).relu()
    assert torch.allclose(trunk(images), outputs, atol=1e-6)


def test_too_small_images_are_refused():
    with pytest.raises(ConfigError, match="15x32"):
        AlexNet((15, 32))


def test_dropout_works_in_training_only():
    trunk, images = AlexNet((32, 32), 0.05), torch.randn(2, 3, 32, 32)
    assert not torch.equal(trunk(images), trunk(images))
    trunk.eval()
    assert torch.equal(trunk(images), trunk(images))


def test_the_perceptron_of_cat_has_its_size():
    with torch.device("meta"):
        trunk = Mlp((32, 32), 2000)
    assert count(trunk) == 10_148_000


@pytest.mark.parametrize("size", SIZES)
def test_the_perceptron_takes_any_image_size(size):
    images = torch.randn(3, 3, size, size)
    trunk = Mlp((size, size), 8).eval()
    assert trunk(images).shape == (3, 8)
    assert torch.equal(trunk(images), trunk(images.contiguous(memory_format=torch.channels_last)))
