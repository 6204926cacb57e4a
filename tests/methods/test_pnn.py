"""PNN: sizes in sources.md#pnn, the column's equations."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from par import seeding
from par.config import Config
from tests.methods import modular_cases as cases

PAPER = Config(preset="test", streams=(), seeds=(0,), methods={})
MILLIONS = [0.607, 1.840, 3.094, 4.368, 5.662, 6.977, 8.313, 9.669, 11.045, 12.442]


def test_sizes_for_ten_10_way_tasks():
    method, sizes = cases.learner("pnn", PAPER), []
    for task_id in range(10):
        method.grow({"task": task_id, "n_classes": 10})
        sizes.append(method.n_params() / 1e6)
    assert [round(size, 3) for size in sizes] == MILLIONS
    assert method.n_state() == 0


def column_by_hand(method, images, task_id, previous):
    """Logits of sources.md#pnn, written out; ``previous`` are the stage inputs and features of earlier columns."""
    column = method.parts[str(task_id)]
    state = column.trunk.pool(column.trunk.stem(images))
    for depth, stage in enumerate(column.trunk.stages):
        scaled, mix, _, lateral_stage = column.laterals[depth]
        inputs = [scale * states[depth] for scale, states in zip(scaled.scale, previous)]
        lateral = functional.relu(functional.conv2d(torch.cat(inputs, 1), mix.weight, mix.bias))
        state = stage(state) + lateral_stage(lateral)
    scaled, first, _, second = column.laterals[-1]
    features = torch.cat([scale * states[-1] for scale, states in zip(scaled.scale, previous)], 1)
    return method.heads[task_id](state.mean((2, 3))) + second(functional.relu(first(features)))


@pytest.mark.parametrize("old_laterals", [False, True])
def test_a_column_reads_what_earlier_columns_offer(old_laterals):
    method = cases.grown("pnn", [{}, {}, {}], old_laterals=old_laterals)
    images = torch.randn(5, 3, 16, 16)
    first = method.parts["0"](images)
    second = method.parts["1"](images, [first] if old_laterals else ())
    expected = column_by_hand(method, images, 2, [first, second])
    torch.testing.assert_close(method.logits(images, 2), expected)
    other = method.parts["1"](images, () if old_laterals else [first])
    assert not torch.allclose(column_by_hand(method, images, 2, [first, other]), expected)


def test_the_first_column_is_the_light_resnet18():
    method, images = cases.grown("pnn", [{}, {}]), torch.randn(5, 3, 16, 16)
    expected = method.heads[0](method.parts["0"].trunk(images))
    torch.testing.assert_close(method.logits(images, 0), expected)


def test_every_part_of_a_new_column_is_trained():
    method = cases.learner("pnn")
    method.learn(cases.task(0), cases.step(0))
    method.learn(cases.task(1), cases.step(1))
    again = cases.learner("pnn")
    again.learn(cases.task(0), cases.step(0))
    with seeding.seeded_layers(cases.step(1).key, "initialisation"):
        again.grow(again.record(cases.task(1)))
    for (name, trained), (_, initial) in zip(method.own(1).named_parameters(), again.own(1).named_parameters()):
        assert not torch.equal(trained, initial), name
