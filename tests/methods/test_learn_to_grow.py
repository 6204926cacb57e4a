"""Learn to Grow: options of a layer against convolutions, sizes (sources.md#learn-to-grow), search, freezing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from par.config import Config
from par.methods.learn_to_grow import ADAPT, NEW, REUSE, MixedConv, SharedConv, convolutions
from par.networks.resnet import LightResNet
from tests.methods import modular_cases as cases

PAPER = Config(preset="test", streams=(), seeds=(0,), methods={})
LAYERS = [(3, 1, 1), (3, 2, 1), (1, 2, 0)]  # kernel, stride, padding: all kinds that the light ResNet18 has


def test_every_convolution_is_a_layer():
    assert len(convolutions(LightResNet(4))) == 20


@pytest.mark.parametrize("kernel, stride, padding", LAYERS)
def test_adapt_adds_a_parallel_1x1_convolution(kernel, stride, padding):
    conv = nn.Conv2d(4, 5, kernel, stride, padding, bias=False)
    stored, inputs = nn.Parameter(torch.randn_like(conv.weight)), torch.randn(2, 4, 9, 9)
    reuse, adapt = SharedConv(conv, stored, False), SharedConv(conv, stored, True)
    plain = functional.conv2d(inputs, stored, stride=stride, padding=padding)
    torch.testing.assert_close(reuse(inputs), plain)
    torch.testing.assert_close(adapt(inputs), plain + functional.conv2d(inputs, adapt.correction, stride=stride))
    assert not list(reuse.parameters()) and [p.numel() for p in adapt.parameters()] == [20]


@pytest.mark.parametrize("kernel, stride, padding", LAYERS)
def test_the_mixture_of_kernels_is_the_mixture_of_outputs(kernel, stride, padding):
    conv = nn.Conv2d(4, 5, kernel, stride, padding, bias=False)
    stored = [nn.Parameter(torch.randn_like(conv.weight)) for _ in range(2)]
    layer, inputs = MixedConv(conv, stored), torch.randn(2, 4, 9, 9)

    def apply(weight):
        return functional.conv2d(inputs, weight, stride=stride, padding=padding)

    reuse = [apply(weight) for weight in stored]
    adapt = [
        apply(weight) + functional.conv2d(inputs, correction, stride=stride)
        for weight, correction in zip(stored, layer.corrections)
    ]
    weights = torch.softmax(layer.alpha, 0)
    outputs = [*reuse, *adapt, apply(conv.weight)]
    expected = sum(weight * output for weight, output in zip(weights, outputs, strict=True))
    torch.testing.assert_close(layer(inputs), expected)
    assert layer.options == [(REUSE, 0), (REUSE, 1), (ADAPT, 0), (ADAPT, 1), (NEW, 0)]
    sizes = [0, 0, 20, 20, conv.weight.numel()]
    by_hand = sum(float(weight) * math.log10(1 + size) for weight, size in zip(weights, sizes))
    assert float(layer.size()) == pytest.approx(by_hand, rel=1e-5)


def test_sizes_between_all_reuse_and_all_new():
    new, reuse = [[NEW, 0]] * 20, [[REUSE, 0]] * 20
    records = [{"choices": new}] + 9 * [{"choices": reuse}]
    assert cases.grown("learn_to_grow", records, PAPER).n_params() == 635_940
    assert cases.grown("learn_to_grow", 10 * [{"choices": new}], PAPER).n_params() == 6_070_500


def test_only_new_kernels_enter_the_library():
    first, later = [[NEW, 0]] * 20, [[ADAPT, 0]] * 10 + [[NEW, 0]] * 10
    method = cases.grown("learn_to_grow", [{"choices": first}, {"choices": later}, {"choices": later}])
    lengths = [len(method.kernels(name)) for name in convolutions(LightResNet(4))]
    assert lengths == [1] * 10 + [3] * 10


def test_reuse_takes_the_kernel_itself_not_its_adapted_form():
    records = [{"choices": [[kind, 0]] * 20} for kind in (NEW, ADAPT, REUSE)]
    method = cases.grown("learn_to_grow", records)
    original = method.parts["0"].get_submodule("stem.0")
    shared = method.parts["2"].get_submodule("stem.0")
    inputs = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(shared(inputs), original(inputs))


def test_a_heavy_size_penalty_reuses_everything():
    method = cases.learner("learn_to_grow", size_weight=100.0, choice_learning_rate=1.0, search_epochs=6)
    for task_id in range(2):
        method.learn(cases.task(task_id), cases.step(task_id))
    assert {kind for kind, _ in method.tasks[1]["choices"]} == {REUSE}
    owned = sum(parameter.numel() for parameter in method.own(1).parameters())
    assert owned == 20 * 2 * 8 + 8 * 3 + 3  # BatchNorm and head


def test_the_search_is_remembered_and_training_starts_from_its_weights():
    memory, saved = cases.Memory(), []
    for _ in range(2):
        method = cases.learner("learn_to_grow")
        method.learn(cases.task(0), cases.step(0))
        method.learn(cases.task(1), cases.step(1, remember=memory))
        saved.append(method.save())
        assert memory.computed == 1
    found = memory.entries["search"]
    assert method.tasks[1]["choices"] == found["choices"]
    assert found["tensors"].keys() == method.own(1).state_dict().keys()
    assert all(torch.equal(value, saved[1]["tensors"][name]) for name, value in saved[0]["tensors"].items())
