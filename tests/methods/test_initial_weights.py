"""Initial weights of the light ResNet18 are those of the code that each method comes from (sources.md#resnet)."""

from __future__ import annotations

import pytest
from torch import nn

from par.config import Config
from par.methods.learn_to_grow import NEW
from par.seeding import seeded_layers
from tests.methods import tasks

BY_FAN_OUT, BY_DEFAULT = (2 / (9 * 64)) ** 0.5, (3 * 9 * 64) ** -0.5  # deviations of a 3x3 kernel of a stage


@pytest.mark.parametrize(
    ("method", "record", "layer", "deviation"),
    [
        ("finetune", {}, "trunk.stem.0", BY_FAN_OUT),
        ("ewc", {}, "trunk.stages.1.0.conv2", BY_FAN_OUT),
        ("pnn", {}, "parts.1.trunk.stages.1.0.conv2", BY_FAN_OUT),
        ("pnn", {}, "parts.1.laterals.1.3.0.conv2", BY_FAN_OUT),
        ("pnn", {}, "parts.1.laterals.1.1", (2 / 64) ** 0.5),  # 1x1
        ("learn_to_grow", {"choices": [[NEW, 0]] * 20}, "parts.0.stages.1.0.conv2", BY_FAN_OUT),
        ("mntdp_s", {"path": [0] * 7}, "parts.0.2.0.conv2", BY_DEFAULT),
        ("mntdp_d", {"path": [0] * 7}, "parts.0.2.0.conv2", BY_DEFAULT),
    ],
)
def test_they_have_the_deviation_of_their_code(method, record, layer, deviation):
    with seeded_layers("initial weights"):
        learner = tasks.learner(method, Config(preset="test", streams=(), seeds=(0,), methods={}))
        for task in range(2):
            learner.grow({"task": task, "n_classes": 10, "image_size": [32, 32]} | record)
    conv = learner.get_submodule(layer)
    assert isinstance(conv, nn.Conv2d)
    assert float(conv.weight.detach().std()) == pytest.approx(deviation, rel=0.05)
