from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.cells import PlainStack
from par.cells.genotype import EDGES, KINDS, OPERATIONS
from par.cells.supernet import Supernet
from tests.layouts import assert_channels_last_inside


def choice(seed: int) -> dict[str, list[int]]:
    generator = np.random.default_rng(seed)
    return {kind: generator.integers(len(OPERATIONS), size=len(EDGES)).tolist() for kind in KINDS}


def everywhere(name: str) -> dict[str, list[int]]:
    return {kind: [OPERATIONS.index(name)] * len(EDGES) for kind in KINDS}


def test_parameter_count():
    """The reference's 947,010 (sources.md#par-search) are this body and a head for two classes."""
    with torch.device("meta"):
        supernet = Supernet(4, 64)
    n_params = sum(parameter.numel() for parameter in supernet.parameters())
    assert n_params == 946_496
    assert n_params + sum(p.numel() for p in nn.Linear(supernet.n_features, 2).parameters()) == 947_010


def test_batch_norms():
    """None in a cell is affine, and each of the 14 poolings of both kinds has one."""
    supernet = Supernet(4, 8)
    for cell in supernet.cells:
        norms = [module for module in cell.modules() if isinstance(module, nn.BatchNorm2d)]
        assert norms and not any(norm.affine for norm in norms)
        for edge in cell.edges:
            for name in ("max_pool_3x3", "avg_pool_3x3"):
                assert isinstance(edge[name][1], nn.BatchNorm2d)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("training", [True, False])
def test_path_equals_standalone_modules(seed, training):
    """Bit for bit what the chosen modules give with a ReLU each and "none" computed as a product with 0."""
    torch.manual_seed(seed)
    supernet = Supernet(4, 8)
    supernet.choose(choice(seed))
    plain = PlainStack(supernet, bit_equal=True).train(training)
    images = torch.randn(4, 3, 18, 18)
    assert torch.equal(supernet.train(training)(images), plain(images))


@pytest.mark.parametrize("size", [7, 14, 16, 21, 28, 32, 42, 84])
def test_sizes_with_nodes_without_input(size):
    """Node 1 has no input but "none" in both kinds of cell, which also strides."""
    chosen = everywhere("max_pool_3x3")
    for operations in chosen.values():
        operations[:2] = [0, 0]
    supernet = Supernet(4, 4).eval()
    supernet.choose(chosen)
    images = torch.randn(2, 3, size, size)
    features = supernet(images)
    assert torch.equal(features, PlainStack(supernet, bit_equal=True).eval()(images))
    assert torch.equal(features[:, :4], torch.zeros(2, 4)) and features[:, 4:].abs().max() > 0


def test_all_none_gives_zeros_and_trains_nothing():
    supernet = Supernet(4, 4)
    supernet.choose(everywhere("none"))
    features = supernet(torch.randn(2, 3, 16, 16))
    assert torch.equal(features, torch.zeros(2, 16)) and not features.requires_grad


def test_only_the_chosen_path_gets_gradients_and_moves():
    torch.manual_seed(0)
    supernet = Supernet(4, 4)
    chosen = choice(1)
    supernet.choose(chosen)
    before = {name: value.clone() for name, value in supernet.state_dict().items()}
    optimizer = torch.optim.SGD(supernet.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    supernet(torch.randn(4, 3, 16, 16)).square().sum().backward()
    optimizer.step()
    unchosen = []
    moved = {name for name, value in supernet.state_dict().items() if not torch.equal(value, before[name])}
    for index in range(len(supernet.cells)):
        operations = chosen["reduce" if index in (1, 2) else "normal"]
        for edge, operation in enumerate(operations):
            for name in OPERATIONS[1:]:
                if name != OPERATIONS[operation]:
                    unchosen.append(f"cells.{index}.edges.{edge}.{name}.")
    assert not any(name.startswith(tuple(unchosen)) for name in moved)
    assert any(".sep_conv_3x3." in name for name in moved)  # and something did move


def test_weights_are_shared_between_choices():
    torch.manual_seed(0)
    supernet = Supernet(4, 4).eval()
    images = torch.randn(2, 3, 16, 16)
    outputs = []
    for seed in (1, 2, 1):
        supernet.choose(choice(seed))
        outputs.append(supernet(images))
    assert torch.equal(outputs[0], outputs[2]) and not torch.equal(outputs[0], outputs[1])


def test_choice_needs_fourteen_edges():
    supernet = Supernet(4, 4)
    supernet.choose({kind: [1] * 13 for kind in KINDS})
    with pytest.raises(ValueError):
        supernet(torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("seed", range(3))
def test_channels_last_inside(seed):
    supernet = Supernet(4, 8)
    supernet.choose(choice(seed))
    assert_channels_last_inside(supernet, torch.randn(4, 3, 32, 32), at_least=40)
