"""What benchmarks/agreement relies on besides the code that it compares with, which is not here."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.agreement import repository
from benchmarks.agreement.comparison import (
    ConvertedImages,
    Row,
    in_dtype,
    largest_difference,
    recorded,
    show,
    small_tasks,
)
from benchmarks.agreement.par import _nodes, _worth
from benchmarks.agreement.protected import everything, old_torch
from par.cells.expert import Expert
from par.cells.genotype import DARTS_V1, random_genotype
from par.cells.supernet import Supernet
from par.methods.finetune import Finetune
from par.settings import resolve
from tests.methods.tasks import CONFIG, RECIPE, images, step, task

SimpleGenotype = namedtuple("SimpleGenotype", "normal reduce")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("experts.2.stem.0.weight", "trunk.stem.0.weight"),
        ("fc.3.bias", "heads.by_task.3.bias"),
        ("experts.0.cells.1.preprocess1.op.2.running_mean", "trunk.cells.1.inputs.newer.layers.1.running_mean"),
        ("experts.0.cells.2.preprocess0.conv_2.weight", "trunk.cells.2.inputs.older.odd.weight"),
        ("experts.0.cells.2.preprocess0.bn.weight", None),
        ("experts.0.cells.0._ops.5.op.7.weight", "trunk.cells.0.operations.2.1.layers.6.weight"),
        ("experts.0.cells.1._ops.2.conv_1.weight", "trunk.cells.1.operations.1.0.even.weight"),
        ("experts.0.cells.1._ops.2.bn.bias", None),
        ("classifier.weight", "head.weight"),
        ("cells.0._ops.13._ops.5.op.1.weight", "supernet.cells.0.edges.13.dil_conv_3x3.layers.0.weight"),
        ("cells.1._ops.0._ops.1.1.running_var", "supernet.cells.1.edges.0.max_pool_3x3.1.running_var"),
        ("cells.1._ops.0._ops.3.conv_1.weight", "supernet.cells.1.edges.0.skip_connect.even.weight"),
        ("cells.1._ops.0._ops.3.bn.running_mean", None),
    ],
)
def test_names_of_their_networks_lead_to_ours(theirs, ours):
    assert repository.our_name(theirs) == ours
    if ours is None:
        return
    networks = {"trunk": Expert(DARTS_V1, 4, 4), "supernet": Supernet(4, 4)}
    root, _, rest = ours.partition(".")
    if root in networks and ".operations." not in ours:  # which operations are there depends on the genotype
        assert rest in networks[root].state_dict()


def test_names_of_their_resnet_lead_to_ours():
    theirs = ["conv1.weight", "bn1.bias", "layer2.0.downsample.1.running_var", "layer4.1.bn2.weight", "fc.0.weight"]
    learner = Finetune(resolve(CONFIG, "", "finetune"))
    learner.grow({"task": 0, "n_classes": 2})
    assert {repository.our_resnet_name(name) for name in theirs} < set(learner.state_dict())
    assert len({repository.our_resnet_name(name) for name in theirs}) == len(theirs)


def test_what_has_no_counterpart_is_named():
    names = {"fc.0.weight": 1, "experts.0.cells.0.preprocess0.bn.bias": 2}
    assert repository.pair_up(names, {"heads.by_task.0.weight": 3}) == [("heads.by_task.0.weight", 1, 3)]
    with pytest.raises(AssertionError, match=r"without counterpart: .*heads\.by_task\.0\.bias"):
        repository.pair_up(names, {"heads.by_task.0.weight": 3, "heads.by_task.0.bias": 4})


def test_differences_are_relative_to_the_largest_value():
    assert largest_difference([(torch.tensor([1.0, 11.0]), np.array([1.0, 10.0]))]) == pytest.approx(0.1)
    assert largest_difference([(np.zeros(2), np.zeros(2)), (1.0, 1.0)]) == 0.0
    assert largest_difference([(np.ones(2), np.zeros(2))]) > 1
    with pytest.raises(AssertionError, match="shapes"):
        largest_difference([(np.ones(2), np.ones(3))])
    with pytest.raises(AssertionError):
        largest_difference([])


def test_loaders_hand_out_epochs_in_order():
    first, second = [["a", "b"], ["c"]], [["v"]]
    with repository.loaders(first, second):
        train = torch.utils.data.DataLoader("any data", batch_size=3, shuffle=True)
        valid = torch.utils.data.DataLoader("other data")
    assert [list(train), list(valid), list(train), list(valid), list(train)] == [["a", "b"], ["v"], ["c"], ["v"], ["c"]]
    assert isinstance(torch.utils.data.DataLoader([1]), torch.utils.data.DataLoader)


def test_a_learner_is_recorded_in_float64():
    with in_dtype(torch.float64):
        learner = recorded(Finetune)(resolve(CONFIG, "", "finetune"))
        one = task(0)
        converted = ConvertedImages(
            images(0, "train").pixels.permute(0, 3, 1, 2), one.train.labels, (0.5,) * 3, (0.25,) * 3
        )
        one = type(one)(0, 3, converted, converted)
        learner.learn(one, step(0, dataclasses.replace(RECIPE, epochs=2)))
    assert torch.get_default_dtype() == torch.float32
    assert {value.dtype for name, value in learner.state_dict().items() if "num_batches" not in name} == {torch.float64}
    assert len(learner.epochs) == 2 and all(len(epoch) == 6 for epoch in learner.epochs)
    pixels, labels = learner.epochs[0][0]
    assert pixels.dtype == torch.float64 and pixels.shape == (8, 3, 16, 16) and labels.shape == (8,)
    moved = [not torch.equal(learner.initial[name], value) for name, value in learner.trunk.named_parameters("trunk")]
    assert all(moved)


def test_small_tasks_have_every_class_and_every_second_pixel(tmp_path):
    labels = np.repeat(np.arange(3), 30)
    pixels = np.random.default_rng(0).integers(0, 256, (90, 3, 8, 8), dtype=np.uint8)
    split = SimpleNamespace(images=pixels, labels=labels)
    one = SimpleNamespace(index=0, n_classes=3, mean=(0.5,) * 3, std=(0.25,) * 3, split=lambda name: split)
    (small,) = small_tasks(SimpleNamespace(tasks=[one, one]), (12,), step=2)
    assert np.bincount(small.train.labels).tolist() == [4, 4, 4] and len(small.valid) == 50
    expected = (pixels[30, :, ::2, ::2] / 255 - 0.5) / 0.25  # the first image of the second class
    np.testing.assert_allclose(small.train.batch(torch.tensor([1]))[0], expected, atol=1e-5)


def test_batches_become_one_epoch_again():
    batches = [(torch.ones(2, 3, 4, 4), torch.zeros(2)), (torch.zeros(1, 3, 4, 4), torch.ones(1))]
    pixels, labels = everything([batches])
    assert pixels.shape == (3, 3, 4, 4) and pixels[:, 0, 0, 0].tolist() == [1, 1, 0] and labels.tolist() == [0, 0, 1]
    with pytest.raises(ValueError):
        everything([batches, batches])


def test_code_for_old_torch_runs_without_shuffling_on_the_cpu():
    rows = np.arange(50)
    with old_torch():
        np.random.shuffle(rows)
        assert torch.autograd.Variable(torch.ones(2).cuda(), volatile=True).tolist() == [1, 1]
    assert rows.tolist() == list(range(50))


def test_the_worth_of_a_genotype():
    genotype = random_genotype(np.random.default_rng(0))
    flat = SimpleGenotype(
        *([pair for node in getattr(genotype, kind) for pair in node] for kind in ("normal", "reduce"))
    )
    assert [tuple(node) for node in _nodes(flat)] == [*genotype.normal, *genotype.reduce]
    probabilities = np.random.default_rng(1).random((2, 14, 6))
    # the second node's edges are numbers 2, 3 and 4
    (name, predecessor), (other, second) = genotype.reduce[1]
    operations = ("none", "max_pool_3x3", "avg_pool_3x3", "skip_connect", "sep_conv_3x3", "dil_conv_3x3")
    values = [probabilities[1, 2 + p, operations.index(n)] for n, p in ((name, predecessor), (other, second))]
    assert _worth(flat, probabilities)[4 + 1] == sorted(values)


def test_only_judged_rows_count_as_different(capsys):
    rows = [Row("a", "x", 1e-12, 1e-9), Row("a", "y", 1e-3, 1e-9), Row("b", "z", 1.0, None)]
    assert show(rows) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-3:] == ["| a | x | 1.0e-12 | agrees |", "| a | y | 1.0e-03 | DIFFERS |", "| b | z | 1.0e+00 |  |"]


def test_a_folder_without_their_code_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"holds no src/approaches/\w+\.py; name a checkout of WenjinW/PAR"):
        repository.load(tmp_path)
