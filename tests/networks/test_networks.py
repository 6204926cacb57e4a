"""Networks: sizes in sources.md#resnet, layouts, image sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from par import seeding
from par.config import NetworkSettings
from par.networks import build_network
from par.networks.heads import Heads
from par.networks.resnet import LightResNet


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("stem_pool", [True, False])
def test_the_light_resnet18_has_the_papers_size(stem_pool):
    trunk, heads = LightResNet(64, stem_pool), Heads(64)
    assert count(trunk) == 606_400
    assert count(trunk) + count(heads.add(0, 10)) == 607_050
    for task in range(1, 10):
        heads.add(task, 10)
    assert count(trunk) + count(heads) == 612_900
    assert sum(buffer.numel() for buffer in trunk.buffers()) == 2_580


@pytest.mark.parametrize("size", [16, 28, 32, 64, 84])
@pytest.mark.parametrize("stem_pool", [True, False])
def test_any_image_size_passes(size, stem_pool):
    assert LightResNet(8, stem_pool)(torch.zeros(2, 3, size, size)).shape == (2, 8)


def test_half_as_deep_it_is_resnet10():
    """Ten layers that learn with the head: the stem and two a block; shortcuts are not counted."""
    trunk = build_network(NetworkSettings(name="resnet10_light", width=8))
    kernels = [module for module in trunk.modules() if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3)]
    assert len(kernels) + 1 == 10 and len(trunk.blocks()) == 5
    assert trunk(torch.zeros(2, 3, 16, 16)).shape == (2, 8)


def test_the_stem_pool_quarters_the_map():
    maps = []
    for stem_pool in (True, False):
        trunk = LightResNet(8, stem_pool)
        trunk.stages.register_forward_hook(lambda _, __, output: maps.append(tuple(output.shape[2:])))
        trunk(torch.zeros(1, 3, 32, 32).repeat(2, 1, 1, 1))
    assert maps == [(2, 2), (4, 4)]


def test_channels_last_holds_inside_the_network():
    trunk, checked = LightResNet(8), []

    def check(module, inputs, output):
        checked.append(output.is_contiguous(memory_format=torch.channels_last) and output.shape[2] > 1)

    for module in trunk.modules():
        if isinstance(module, torch.nn.Conv2d) and module.kernel_size == (3, 3):
            module.register_forward_hook(check)
    trunk(torch.zeros(2, 3, 32, 32).contiguous(memory_format=torch.channels_last))
    assert len(checked) == 17 and all(checked)


def test_heads_are_chosen_by_task():
    heads = Heads(4)
    first, second = heads.add(3, 2), heads.add(11, 5)
    features = torch.randn(6, 4)
    assert torch.equal(heads(features, 3), first(features)) and torch.equal(heads(features, 11), second(features))


def test_initialisation_is_named_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeding.seeded_layers("a"):
        first = LightResNet(4).stem[0].weight
    with seeding.seeded_layers("a"):
        again = LightResNet(4).stem[0].weight
    with seeding.seeded_layers("b"):
        other = LightResNet(4).stem[0].weight
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first, again) and not torch.equal(first, other)
