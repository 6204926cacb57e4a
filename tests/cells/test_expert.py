from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.cells import PlainStack
from par.cells.expert import Expert
from par.cells.genotype import DARTS_V1, DARTS_V2, GENOTYPE_OPERATIONS, Genotype, random_genotype
from par.cells.operations import FactorisedReduction
from tests.layouts import assert_channels_last_inside


def uniform_genotype(operation: str) -> Genotype:
    cell = (((operation, 0), (operation, 1)),) * 4
    return Genotype(cell, cell)


def n_params(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def n_unused_in_reference(expert: Expert) -> int:
    """Parameters of the BatchNorm that the reference defines in every factorised reduction and does not use."""
    reductions = [module for module in expert.modules() if isinstance(module, FactorisedReduction)]
    return sum(2 * (module.even.out_channels + module.odd.out_channels) for module in reductions)


@pytest.mark.parametrize(
    "genotype, n_cells, channels, ours, reference",
    [  # reference: sources.md#expert
        (DARTS_V1, 4, 64, 221_120, 221_376),
        (DARTS_V2, 4, 64, 230_720, 230_976),
        (uniform_genotype("sep_conv_3x3"), 4, 64, 432_320, 432_576),
        (uniform_genotype("dil_conv_3x3"), 4, 64, 278_720, 278_976),
        (uniform_genotype("skip_connect"), 4, 64, 190_656, 192_960),
        (uniform_genotype("max_pool_3x3"), 4, 64, 125_120, 125_376),
        (uniform_genotype("avg_pool_3x3"), 4, 64, 125_120, 125_376),
        (DARTS_V1, 4, 36, 74_988, 75_132),
        (DARTS_V1, 4, 16, 17_648, 17_712),
        (DARTS_V1, 3, 64, 140_224, 140_352),
        (DARTS_V1, 5, 64, 302_144, 302_400),
        (DARTS_V1, 6, 64, 383_168, 383_424),
    ],
)
def test_parameter_counts(genotype, n_cells, channels, ours, reference):
    with torch.device("meta"):
        expert = Expert(genotype, n_cells, channels)
    assert n_params(expert) == ours
    assert n_params(expert) + n_unused_in_reference(expert) == reference


def test_parameter_counts_of_the_parts():
    expert = Expert(DARTS_V1, 4, 64)
    assert n_params(expert.stem) == 5_568
    assert [n_params(cell) for cell in expert.cells] == [72_832, 28_928, 33_024 - 128, 81_024 - 128]


def test_mean_parameter_count_of_random_genotypes():
    generator = np.random.default_rng(0)
    with torch.device("meta"):
        counts = [n_params(Expert(random_genotype(generator), 4, 64)) + 2_570 for _ in range(40)]
    assert np.mean(counts) == pytest.approx(226_759, rel=0.07)  # 200 draws of the reference; sd of one is about 32,000


def test_every_parameter_is_used():
    expert = Expert(uniform_genotype("skip_connect"), 4, 8)
    expert(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in expert.parameters())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("training", [True, False])
def test_equals_one_relu_per_operation_bit_for_bit(seed, training):
    torch.manual_seed(seed)
    expert = Expert(random_genotype(np.random.default_rng(seed)), 4, 8)
    images = torch.randn(4, 3, 20, 20)
    plain = PlainStack(expert, bit_equal=True).train(training)
    assert torch.equal(expert.train(training)(images), plain(images))


def test_gradients_equal_one_relu_per_operation():
    torch.manual_seed(0)
    expert = Expert(DARTS_V1, 4, 8).double()
    images = torch.randn(8, 3, 16, 16, dtype=torch.float64)
    plain = PlainStack(expert)
    for network in (expert, plain):
        network(images).square().sum().backward()
    for ours, theirs in zip(expert.stem.parameters(), plain.stem.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)


def slow_two_cells(expert: Expert, images: torch.Tensor) -> torch.Tensor:
    """An expert of two cells (both reductions, all operations avg_pool) written out from sources.md#expert."""

    def pool(x: torch.Tensor, stride: int) -> torch.Tensor:
        return nn.functional.avg_pool2d(x, 3, stride, 1, count_include_pad=False)

    def cell(index: int, older: torch.Tensor, newer: torch.Tensor) -> torch.Tensor:
        inputs = expert.cells[index].inputs
        s0, s1 = inputs.older(older.relu()), inputs.newer(newer.relu())
        n1 = pool(s0, 2) + pool(s1, 2)
        n2 = pool(s0, 2) + pool(n1, 1)
        n3 = pool(n1, 1) + pool(n2, 1)
        n4 = pool(n3, 1) + pool(s1, 2)
        return torch.cat([n1, n2, n3, n4], dim=1)

    stem = expert.stem(images)
    first = cell(0, stem, stem)
    return cell(1, stem, first).mean(dim=(2, 3))


def test_wiring_against_a_network_written_out():
    torch.manual_seed(0)
    pairs = ((0, 1), (0, 2), (2, 3), (4, 1))
    nodes = tuple(tuple(("avg_pool_3x3", predecessor) for predecessor in pair) for pair in pairs)
    expert = Expert(Genotype(DARTS_V1.normal, nodes), 2, 8).eval()
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(expert(images), slow_two_cells(expert, images))


def test_sizes_inside():
    expert = Expert(DARTS_V1, 4, 8).eval()
    shapes = []
    for cell in expert.cells:
        cell.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    features = expert(torch.randn(2, 3, 32, 32))
    assert shapes == [(32, 32, 32), (32, 16, 16), (32, 8, 8), (32, 8, 8)]
    assert features.shape == (2, 32) and expert.n_features == 32


@pytest.mark.parametrize("size", [7, 14, 16, 21, 28, 32, 42, 64, 84])
def test_image_sizes(size):
    for operation in GENOTYPE_OPERATIONS:
        expert = Expert(uniform_genotype(operation), 4, 2).eval()
        features = expert(torch.randn(1, 3, size, size))
        assert features.shape == (1, 8) and features.isfinite().all()


@pytest.mark.parametrize("genotype", [DARTS_V1, DARTS_V2, random_genotype(np.random.default_rng(1))])
@pytest.mark.parametrize("copied", [False, True])
def test_channels_last_inside(genotype, copied):
    """For an NCHW input, and for a copy whose weights were loaded from NCHW ones."""
    expert = Expert(genotype, 4, 8)
    if copied:
        copied_expert = copy.deepcopy(expert)
        copied_expert.load_state_dict({name: value.contiguous() for name, value in expert.state_dict().items()})
        expert = copied_expert
    assert_channels_last_inside(expert, torch.randn(4, 3, 32, 32), at_least=40)
