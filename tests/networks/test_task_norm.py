"""Batch normalisation per task."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from par.networks.resnet import LightResNet
from par.networks.task_norm import TaskNorm, parts_of_task, replace_norms, task_norms


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3, 3)])
def test_one_task_is_plain_batch_normalisation(shared, shape):
    kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    plain, norm = kind(4), TaskNorm(kind(4), shared)
    norm.add(5)
    norm.active = "5"
    for _ in range(3):
        inputs = 2 * torch.randn(shape) + 1
        assert torch.equal(norm(inputs), plain(inputs))
    norm.eval(), plain.eval()
    assert torch.equal(norm(inputs), plain(inputs))
    assert torch.equal(norm.by_task["5"].running_var, plain.running_var)


@pytest.mark.parametrize("shared", [True, False])
def test_a_new_task_starts_where_the_last_one_ended_and_leaves_it_alone(shared):
    norm = TaskNorm(nn.BatchNorm2d(4), shared)
    norm.add(0)
    norm.active = "0"
    norm(torch.randn(8, 4, 2, 2) + 3)
    kept = norm.by_task["0"].running_mean.clone()
    norm.add(1)
    assert torch.equal(norm.by_task["1"].running_mean, kept)
    norm.active = "1"
    norm(torch.randn(8, 4, 2, 2) - 3)
    assert torch.equal(norm.by_task["0"].running_mean, kept)
    assert not torch.equal(norm.by_task["1"].running_mean, kept)


@pytest.mark.parametrize(("shared", "n_params"), [(True, 606_400), (False, 606_400 + 2 * 20 * 64)])
def test_only_affine_parameters_of_each_task_make_the_network_grow(shared, n_params):
    network = LightResNet(64)
    replace_norms(network, shared)
    norms = task_norms(network)
    assert len(norms) == 20
    for norm in norms:
        norm.add(0)
        norm.add(1)
    assert sum(parameter.numel() for parameter in network.parameters()) == n_params


@pytest.mark.parametrize("shared", [True, False])
def test_parts_of_a_task_are_its_norms_and_all_weights_but_shared_affine_ones(shared):
    network = LightResNet(4)
    replace_norms(network, shared)
    for norm in task_norms(network):
        norm.add(0)
        norm.add(1)
    parts = nn.ModuleList(parts_of_task(network, 1))
    convolutions = sum(m.weight.numel() for m in network.modules() if isinstance(m, nn.Conv2d))
    n_affine = 0 if shared else 2 * 4 * 20
    assert sum(parameter.numel() for parameter in parts.parameters()) == convolutions + n_affine
    own = {id(norm.by_task["1"].running_mean) for norm in task_norms(network)}
    assert {id(buffer) for name, buffer in parts.named_buffers() if name.endswith("mean")} == own
