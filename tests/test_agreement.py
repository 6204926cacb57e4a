"""What benchmarks/agreement relies on besides the code that it compares with, which is not here."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections import namedtuple
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.agreement import alone, baselines, lmc, mntdp, modular, protected, rehearsal, repository
from benchmarks.agreement.comparison import (
    LOSSES,
    ConvertedImages,
    Row,
    as_it_began,
    in_dtype,
    largest_difference,
    last_epoch_stays,
    means_agree,
    precise_casts,
    recorded,
    show,
    small_tasks,
)
from benchmarks.agreement.par import _nodes, _worth
from benchmarks.agreement.protected import everything, old_torch
from benchmarks.agreement.rehearsal import ExactImages, Places, Replay, in_our_order, with_places
from par.cells.expert import Expert
from par.cells.genotype import DARTS_V1, random_genotype
from par.cells.supernet import Supernet
from par.config import NetworkSettings
from par.methods import load_method
from par.methods.bases.mntdp import FRESH, SOURCE
from par.methods.finetune import Finetune
from par.methods.learn_to_grow import convolutions
from par.methods.lmc import LocalModule
from par.networks.resnet import LightResNet
from par.settings import resolve
from tests.methods import modular_cases as cases
from tests.methods.tasks import CONFIG, RECIPE, images, step, task
from tests.project import REPOSITORY

LAYERS = ("stem.0", "stages.1.0.conv1", "stages.0.1.conv2", "stages.3.0.shortcut.0")
SimpleGenotype = namedtuple("SimpleGenotype", "normal reduce")


def test_a_comparison_sets_the_cast_of_every_loss_aside():
    """GPM's was forgotten, when it got a loss of its own, and its weights differed from its authors' by 6e-8."""
    used = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for path in REPOSITORY.glob("par/**/*.py")
        if re.search(r"^from par.training.losses import .*\bcross_entropy\b", path.read_text(), re.MULTILINE)
    }
    assert used - {"par.training.trainer"} == set(LOSSES), "the trainer's is for `select_by: loss`"


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
    config = dataclasses.replace(CONFIG, network=NetworkSettings(width=8))  # as deep as theirs
    learner = Finetune(resolve(config, "", "finetune"))
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


def test_two_standard_errors_of_the_difference_are_allowed():
    here = [np.array([[0.5, 0.1], [0.4, 0.6]]), np.array([[0.5, 0.1], [0.5, 0.7]])]  # AP .5 and .6, AF -.05 and 0
    theirs = [np.array([[0.9, 0.1], [0.6, 0.6]]), np.array([[0.9, 0.1], [0.7, 0.7]])]  # AP .6 and .7, AF -.15 and -.1
    performance, forgetting = means_agree("x", here, theirs)
    error = np.sqrt(2 * 0.005 / 2)  # two means of two values with variance .005
    assert (performance.difference, performance.allowed) == (pytest.approx(0.1), pytest.approx(2 * error))
    assert performance.what == "AP of 2 seeds, 0.550 here and 0.650 (standard error 0.071)"
    assert (forgetting.difference, forgetting.allowed) == (pytest.approx(0.1), pytest.approx(error))
    assert str(performance).endswith("| agrees |") and str(forgetting).endswith("| DIFFERS |")


def test_the_script_of_gpm_is_handed_our_tasks():
    """A stand-in for it, that has seen the tests' images, and prints percents into a table for ten tasks."""
    tasks, tests = [task(0), task(1)], [images(0, "test"), images(1, "test")]
    seen = {}

    def main(options):
        from dataloader import cifar100

        data, classes, size = cifar100.get(seed=options.seed, pc_valid=options.pc_valid)
        seen.update(data)
        assert classes == [(0, 10), (1, 10)] and size == [3, 16, 16]
        assert (options.lr_patience, options.lr_factor) == (6, 2)
        table = np.zeros((10, 10))
        table[:2, :2] = [[50, 0], [40, 60]]
        code.pd.DataFrame(table)

    code = SimpleNamespace(sn=None, plt=None, pd=None, main=main)
    matrix = alone.theirs_gpm(SimpleNamespace(main_cifar100=code), tasks, tests, 3)
    np.testing.assert_allclose(matrix, [[0.5, 0.1], [0.4, 0.6]])
    for number in (0, 1):
        torch.testing.assert_close(seen[number]["test"]["x"], tests[number].batch(torch.arange(48)).contiguous())
        assert torch.equal(seen[number]["train"]["y"], tasks[number].train.labels)


def test_our_side_of_a_method_with_a_network_for_each_task():
    recipe = dataclasses.replace(RECIPE, epochs=4)
    tests = [images(0, "test"), images(1, "test")]
    with mock.patch.dict(alone.CASES, independent=dataclasses.replace(alone.CASES["independent"], recipe=recipe)):
        matrix = alone.ours("independent", [task(0), task(1)], tests, 0)
    assert matrix[0, 0] == matrix[1, 0] > 0.5 < matrix[1, 1]
    assert matrix[0, 1] == 0.1


CAT_SCRIPT = """
import argparse

import numpy as np
import torch

import utils
from dataloaders import mixceleba

parser = argparse.ArgumentParser()
for name in ("seed", "sbatch", "nhid", "nepochs"):
    parser.add_argument(f"--{name}", type=int)
arguments, _ = parser.parse_known_args()
data, classes, size = mixceleba.get(seed=arguments.seed)
assert classes == [(0, 10), (1, 10)] and size == [3, 16, 16] and torch.cuda.is_available()
images = data[1]["valid"]["x"].cuda()
weight = torch.nn.Linear(1, 1).cuda().weight
acc_mcl = np.full((2, 2), utils.VALUE, dtype=np.float32)
np.savetxt("res/accuracies", acc_mcl)
"""


def test_cats_script_runs_whole_on_our_tasks(tmp_path):
    (tmp_path / "run_cat.py").write_text(CAT_SCRIPT)
    (tmp_path / "utils.py").write_text("VALUE = 0.5")
    tasks, tests = [task(0), task(1)], [images(0, "test"), images(1, "test")]
    with mock.patch.object(repository, "run_script", wraps=repository.run_script) as ran:
        matrix = alone.theirs_cat(tmp_path, tasks, tests, 3)
    np.testing.assert_allclose(matrix, [[0.5, 0.1], [0.5, 0.5]])
    _, options, *_ = ran.call_args.args
    assert options["seed"] == 3 and options["lr_patience"] == 5 and "utils" not in sys.modules


def count_class(images_, task_id=0):
    """Logits that name class 2 for all images."""
    return torch.eye(10)[torch.full((len(images_),), 2)]


def test_the_learners_of_sgf_and_lmc_see_each_task_once_and_all_tests_so_far():
    tasks, tests = [task(0), task(1)], [images(0, "test"), images(1, "test")]
    share = [float((split.labels == 2).double().mean()) for split in tests]
    net = mock.Mock(side_effect=count_class)
    learner = mock.Mock(net=net)
    with mock.patch.object(modular, "make_soft_gating", return_value=learner):
        matrix = alone.theirs_soft_gating(None, tasks, tests, 0)
    np.testing.assert_allclose(matrix, [[share[0], 0.1], share])
    assert [call.args[1] for call in learner.train.call_args_list] == [0, 1]
    (train, _, valid), options = learner.train.call_args
    assert len(train.dataset) == len(tasks[1].train) and len(valid) == 1
    assert options == {"num_epochs": alone.CASES["soft_gating"].recipe.epochs}

    model = mock.Mock()
    model.get_optimizers.return_value = ("weights", "structure")
    code = SimpleNamespace(
        train=lambda arguments, model, *_: (model, None, None, None),
        test=lambda model, classes, loader, *_, task_id: (0.1 * task_id + 0.3, None, None),
    )
    with mock.patch.object(lmc, "make_theirs", return_value=model), mock.patch.object(lmc, "finish_task") as finished:
        matrix = alone.theirs_lmc(SimpleNamespace(main_transfer=code), tasks, tests, 0)
    np.testing.assert_allclose(matrix, [[0.3, 0.1], [0.3, 0.4]])
    assert [call.args[1] for call in finished.call_args_list] == [0, 1] and model.optimizer == "weights"


@pytest.mark.parametrize("joins", [True, False])
def test_pars_plan_is_given_by_its_thresholds(joins):
    tasks, tests = [task(0), task(1)], [images(0, "test"), images(1, "test")]
    search = mock.Mock()
    approach = mock.Mock(auto_ml=search)
    approach.eval.side_effect = lambda number, *_: (0.0, 0.2 + 0.1 * number, 0.0)
    modules = mock.MagicMock()
    with mock.patch.object(repository, "make_approach", return_value=approach) as made:
        matrix = alone.theirs_par(modules, joins, tasks, tests, 0)
    np.testing.assert_allclose(matrix, [[0.2, 0.1], [0.2, 0.3]])
    assert made.call_args.kwargs["reuse_threshold"] == (1.0 if joins else -1.0)
    assert made.call_args.kwargs["reuse_cell_threshold"] == -1.0
    approach.auto_ml(4, init_channel=64, device="cpu")
    search.assert_called_once_with(4, init_channel=alone.PAR_CHANNELS, device="cpu")

    searched = mock.Mock(return_value=SimpleNamespace(genotype=DARTS_V1))
    few = dataclasses.replace(alone.PAR, recipe=dataclasses.replace(alone.PAR.recipe, epochs=1))
    with mock.patch.object(alone, "search_cell", searched), mock.patch.object(alone, "PAR", few):
        matrix = alone.ours_par(joins, tasks, tests, 0)
    assert searched.call_count == (1 if joins else 2)
    assert joins or matrix[0, 0] == matrix[1, 0]


def test_the_best_candidate_of_mntdp_stays_with_its_best_weights():
    tasks, tests = [task(0), task(1)], [images(0, "test"), images(1, "test")]

    def opened(theirs, task):
        networks = [nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10)) for _ in range(2)]
        model = SimpleNamespace(models_idx={"worse": 0, "better": 1}, models=networks, res={})
        model._selected_path = lambda: max(model.res, key=lambda nodes: model.res[nodes][2]["value"])
        return model

    values = iter([0.2, 0.7, 0.1, 0.6])

    def train(network, loader, loaders, optimizer, *_, n_ep_max, **options):
        assert len(optimizer.param_groups[0]["params"]) == 2 and n_ep_max == alone.EPOCHS
        value = next(values)
        state = {name: torch.zeros_like(values) for name, values in network.state_dict().items()}
        state["1.bias"][2 if value > 0.5 else 3] = 1.0
        return 0, {}, {"value": value, "state_dict": state}

    with (
        mock.patch.object(mntdp, "today", lambda modules: nullcontext()),
        mock.patch.object(mntdp, "make_theirs") as theirs,
        mock.patch.object(mntdp, "open_task", opened),
    ):
        matrix = alone.theirs_mntdp_d(SimpleNamespace(training=SimpleNamespace(train=train)), tasks, tests, 0)
    share = [float((split.labels == 2).double().mean()) for split in tests]
    np.testing.assert_allclose(matrix, [[share[0], 0.1], share])
    assert theirs.return_value.finish_task.call_count == 2


@pytest.mark.parametrize("shuffles", [False, True])
def test_code_for_old_torch_shuffles_where_it_may(shuffles):
    rows = np.arange(100)
    with old_torch(shuffles):
        np.random.shuffle(rows)
    assert (rows.tolist() != list(range(100))) == shuffles and sorted(rows) == list(range(100))


def test_code_for_old_torch_runs_without_shuffling_on_the_cpu():
    rows = np.arange(50)
    with old_torch():
        np.random.shuffle(rows)
        assert torch.autograd.Variable(torch.ones(2).cuda(), volatile=True).tolist() == [1, 1]
    assert rows.tolist() == list(range(50))


def test_casts_are_precise_inside():
    with in_dtype(torch.float64), precise_casts():
        assert torch.ones(2, dtype=torch.int64).float().dtype == torch.float64
        converted = ConvertedImages(np.zeros((4, 3, 8, 8), np.uint8), np.arange(4), (0.5,) * 3, (0.25,) * 3)
        assert converted.subset(torch.tensor([1, 3])).batch(torch.arange(2)).dtype == torch.float64
    assert torch.ones(1, dtype=torch.int64).float().dtype == torch.float32


def checkout(folder, number):
    (folder / "networks").mkdir(parents=True)
    (folder / "networks/one.py").write_text(f"from absent.package import anything\nimport helper\nNUMBER = {number}\n")
    return folder


def test_modules_of_two_checkouts_with_the_same_names_are_told_apart(tmp_path):
    first, second = (checkout(tmp_path / str(number), number) for number in (1, 2))
    stubs, stand_ins = ("absent", "absent.package"), {"helper": SimpleNamespace(answer=42)}
    found = [
        repository.import_from(folder, ".", ("networks.one",), "a/b", stubs, stand_ins) for folder in (first, second)
    ]
    assert [modules.one.NUMBER for modules in found] == [1, 2] and found[0].one.helper.answer == 42
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("helper")
    with pytest.raises(ModuleNotFoundError, match="absent"):
        repository.import_from(checkout(tmp_path / "3", 3), ".", ("networks.one",), "a/b", (), stand_ins)


def test_a_recorded_learner_has_no_dropout_in_its_attention():
    config = dataclasses.replace(CONFIG, methods={"cat": {"width": 20}})
    learner = recorded(protected.DeclaredCat)(resolve(config, "", "cat"))
    for number in range(3):
        learner.learn(task(number), step(number, dataclasses.replace(RECIPE, epochs=1)))
    assert set(learner.attentions) == {"2"} and learner.tasks[2]["path"] == "both"  # both heads are kept
    assert learner.attentions["2"].attention.dropout == learner.attentions["2"].dropout.p == 0.0


def test_a_module_padded_as_theirs_has_their_sizes():
    padded, ours = lmc.PaddedModule(3, 4), LocalModule(3, 4)
    padded.load_state_dict(ours.state_dict())
    inputs = torch.randn(2, 3, 32, 32)
    for module in (padded, ours):
        outputs, losses = module(inputs, through=False)
        assert outputs.shape == (2, 4, 16, 16) and losses.shape == (2,)
        assert module.structural(outputs).shape == inputs.shape
    assert not torch.allclose(padded(inputs, False)[1], ours(inputs, False)[1])


def test_phases_of_lmc_are_recorded():
    hyper = {"channels": 4, "projection_epochs": 1}
    learner = lmc.RecordedLmc(resolve(dataclasses.replace(cases.CONFIG, methods={"lmc": hyper}), "", "lmc"))
    one = dataclasses.replace(cases.QUICK, epochs=1)
    learner.learn(cases.task(0, 32), step(0, one))
    assert len(learner.phases) == 1
    learner.learn(cases.task(1, 32), step(1, one))
    assert learner.tasks[1]["fresh"] == [1, 2] and set(learner.found) == {0, 1, 2, 3}
    assert [set(phase.before.parts["1"].blocks) for phase in learner.phases] == [{"1"}, {"1", "2"}, {"1", "2"}]
    for phase in learner.phases:
        assert len(phase.batches) == 3 and phase.batches[0][0].is_contiguous()
        weights = [learner.parts["1"].blocks["1"].functional[0].weight for learner in (phase.before, phase.after)]
        assert not torch.equal(*weights)


def test_candidates_of_mntdp_are_recorded():
    learner = mntdp.RecordedMntdpD(resolve(cases.CONFIG, "", "mntdp_d"))
    one = dataclasses.replace(cases.QUICK, epochs=1)
    for number in (0, 1):
        learner.learn(cases.task(number), step(number, one))
    assert [fit.path for fit in learner.fits] == [(SOURCE,) * cut + (FRESH,) * (7 - cut) for cut in range(7, -1, -1)]
    nothing, *others = learner.fits
    assert not nothing.before and not nothing.batches
    for fit in others:
        assert len(fit.batches) == 3 and fit.before.keys() == fit.after.keys()
        assert not torch.equal(fit.before["head.weight"], fit.after["head.weight"])
    assert max(fit.accuracy for fit in learner.fits) == pytest.approx(cases.accuracy(learner, 1))


def test_blocks_of_theirs_are_paired_with_ours():
    learner = cases.grown("mntdp_d", [{"path": [0] * 7}, {"path": [0, 0, 0, 0, 0, 1, 1]}])
    state = {name: value.clone() for name, value in learner.own(1).state_dict().items()}
    theirs = torch.nn.Sequential()
    for depth in range(7):
        theirs.append(mntdp.Block(activation=True))
        theirs.append(learner.block(depth, 1 if depth > 4 else 0))
    pairs = mntdp.block_pairs(theirs, state, (SOURCE,) * 5 + (FRESH,) * 2)
    assert len(pairs) == 2 * 5 + 2 and all(torch.equal(a, b) for a, b in pairs)


def test_choices_and_edges_of_their_graphs():
    taken = [(1, "INs"), (1, "INs", 0), (0, 0), (0, 1, "w"), (0, 1), (1, 2, 0, "f"), (1, 2), (1, 3, 0, "b"), (0, 3)]
    assert mntdp.choices_of([*taken, (0, 4, "w"), (1, "OUT", 0)], 1) == (SOURCE, FRESH, FRESH, SOURCE)
    assert mntdp.edges_of([(1, "INs", 0), (1, "INs", 1)], 1) == [(0, SOURCE, SOURCE), (0, SOURCE, FRESH)]
    assert mntdp.edges_of([(0, 3, "w"), (1, 3, 0, "f")], 1) == [(2, SOURCE, SOURCE), (2, SOURCE, FRESH)]
    assert mntdp.edges_of([(1, 3, "w"), (1, 3, 0, "b")], 1) == [(3, FRESH, FRESH), (3, FRESH, SOURCE)]


def test_blocks_in_the_place_of_theirs_add():
    terms = [torch.tensor([-3.0, 1.0]), torch.tensor([1.0, 1.0])]
    assert mntdp.Block(True)(terms).tolist() == [0, 2] and mntdp.Block()(terms).tolist() == [-2, 2]
    assert mntdp.PassingBlock()(terms[0]).tolist() == [-3, 1]


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


def test_a_learner_can_be_what_it_began_as_and_keeps_its_last_epoch():
    learner = recorded(Finetune)(resolve(CONFIG, "", "finetune"))
    one = dataclasses.replace(task(0), valid=task(1).valid)  # of other patterns: no epoch is surely the best
    with last_epoch_stays():
        log = learner.learn(one, step(0, dataclasses.replace(RECIPE, epochs=3)))
    assert [row["valid_accuracy"] for row in log] == [1.0, 2.0, 3.0]
    after = {name: value.clone() for name, value in learner.state_dict().items()}
    with as_it_began(learner):
        assert all(torch.equal(value, learner.initial[name]) for name, value in learner.state_dict().items())
    assert all(torch.equal(value, after[name]) for name, value in learner.state_dict().items())
    assert not torch.equal(after["trunk.stem.0.weight"], learner.initial["trunk.stem.0.weight"])


def test_a_part_of_converted_images_is_converted():
    whole = ConvertedImages(np.zeros((4, 3, 8, 8), np.uint8), np.arange(4), (0.5,) * 3, (0.25,) * 3)
    with in_dtype(torch.float64):
        part = whole.subset(torch.tensor([3, 1]))
        assert part.batch(torch.arange(2)).dtype == torch.float64 and part.labels.tolist() == [3, 1]


def rehearsed(name, **hyper):
    """A learner whose memory keeps images by known chances, after two tasks in float64; with tasks and chances."""
    stream = [task(number) for number in range(2)]
    with in_dtype(torch.float64), mock.patch("par.methods.bases.memory.Images", ExactImages):
        stream = [
            dataclasses.replace(
                one, train=ExactImages(one.train.pixels.permute(0, 3, 1, 2), one.train.labels, (0.5,) * 3, (0.25,) * 3)
            )
            for one in stream
        ]
        stream = [dataclasses.replace(one, valid=one.train) for one in stream]
        places = Places(stream)
        chances = [torch.rand(48, generator=torch.Generator().manual_seed(number)) for number in range(2)]
        config = dataclasses.replace(CONFIG, methods={name: hyper})
        learner = with_places(load_method(name), places, chances)(resolve(config, "", name))
        for one in stream:
            learner.learn(one, step(one.id, dataclasses.replace(RECIPE, epochs=2)))
        return learner, stream, chances, places.in_memory(learner)


@pytest.mark.parametrize("name", ["er", "agem"])
def test_memories_keep_the_images_of_the_largest_chances_and_steps_name_theirs(name):
    learner, stream, chances, kept = rehearsed(name, per_class=2)
    for number, one in enumerate(stream):
        for label in range(3):
            rows = (one.train.labels == label).nonzero()[:, 0]
            largest = rows[chances[number][rows].argsort(descending=True)[:2]]
            assert {(number, int(row)) for row in largest} <= set(kept)
    assert len(set(kept)) == 12
    (epoch, _), (first, *_) = learner.steps, learner.steps[0]
    assert sorted(row for one in epoch for number, row in one if number == 1) == list(range(48))
    drawn = [place for place in first if place[0] == 0]
    assert len(drawn) == 6 and set(drawn) <= set(kept)  # a batch of 8, but the memory held 6


def test_a_reservoir_by_chances_is_the_images_of_the_largest_while_it_has_seen_no_more():
    _, _, chances, kept = rehearsed("er", per_class=16, mode="reservoir")  # room for all of the first task
    assert set(kept) == {(number, row) for number in range(2) for row in range(48)}
    _, _, chances, kept = rehearsed("er", per_class=2, mode="reservoir")  # 6, then 12
    first = {(0, int(row)) for row in chances[0].argsort(descending=True)[:6]}
    largest = torch.cat(chances).argsort(descending=True)[:12]
    n_old = min(6, int((largest < 48).sum()))
    assert {place for place in kept if place[0] == 0} <= first and len(kept) == 12
    assert sum(number == 0 for number, _ in kept) == n_old


class FakePlaces:
    """Images that are their own places."""

    def of(self, images):
        return list(images)


def test_their_samplers_give_our_steps():
    current, memory = [((1, row), 0) for row in range(3)], [((0, 7), 0), ((0, 5), 0)]
    steps = [[[(1, 2), (0, 5)], [(1, 0), (1, 1)]], [[(1, 0), (0, 5), (0, 7)], [(1, 2), (1, 1), (0, 7)]]]
    as_lists = lambda batches: [batch.tolist() for batch in batches]  # noqa: E731
    joined, alone = Replay(FakePlaces(), steps, joined=True), Replay(FakePlaces(), steps, joined=False)
    assert as_lists(joined.sampler(current)) == [[2], [0, 1]] and as_lists(joined.sampler(memory)) == [[1], []]
    assert as_lists(joined.sampler(current)) == [[0], [2, 1]] and as_lists(joined.sampler(memory)) == [[1, 0], [0]]
    assert as_lists(alone.sampler(current)) == [[2], [0, 1]]
    assert as_lists(alone.sampler(memory)) == [[1], [], [1, 0], [0]]


class FakeAgem:
    """In the place of their plugin: its gradient of the memory overwrites those of the batch."""

    def before_training_iteration(self, strategy):
        (3 * strategy.model.weight.sum()).backward()
        self.reference = strategy.model.weight.grad.clone()
        strategy.model.zero_grad()

    @torch.no_grad()
    def after_backward(self, strategy):
        self.seen = strategy.model.weight.grad.clone(), self.reference


def test_the_gradient_of_the_memory_comes_after_that_of_the_batch():
    plugin, strategy = in_our_order(FakeAgem)(), SimpleNamespace(model=torch.nn.Linear(2, 1, bias=False))
    plugin.before_training_iteration(strategy)
    assert not hasattr(plugin, "reference")
    strategy.model.weight.sum().backward()
    plugin.after_backward(strategy)
    gradient, reference = plugin.seen
    assert gradient.tolist() == [[1, 1]] and reference.tolist() != [[0, 0]]


def test_accuracies_are_of_the_classes_of_each_task_and_chance_before_it():
    images = [
        ExactImages(np.zeros((4, 3, 4, 4), np.uint8), np.array([1, 1, 0, 3]), (0.5,) * 3, (0.25,) * 3) for _ in range(3)
    ]

    def network(pixels, tasks):
        logits = torch.zeros(len(pixels), 30)
        logits[:, 11] = 1.0  # class 1 of task 1
        logits[:, 9] = 2.0  # class 9 of task 0
        return logits

    assert rehearsal.accuracies(partial(rehearsal.logits_of, network), images, 1) == [0.0, 0.5, 0.1]


def test_avalanche_is_asked_for(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(SystemExit, match=r"'avalanche\.training'; install avalanche-lib 0\.6\.0 beside this project"):
        rehearsal.load()


def test_layers_of_ours_lead_to_theirs():
    block = SimpleNamespace(conv1=["a"], conv2=["b"], downsample_conv=["c"], a={"conv1": 1, "conv2": 2, "d_conv": 3})
    network = SimpleNamespace(conv1=["stem"], a={"conv1": 0})
    for stage in range(1, 5):
        setattr(network, f"layer{stage}", [block, block])
    found = {name: (modular.Layer(network, name).kernels, modular.Layer(network, name).alpha) for name in LAYERS}
    assert found == {
        "stem.0": (["stem"], 0),
        "stages.1.0.conv1": (["a"], 1),
        "stages.0.1.conv2": (["b"], 2),
        "stages.3.0.shortcut.0": (["c"], 3),
    }
    names = list(convolutions(LightResNet(8)))
    assert set(found) < set(names)
    architecture = {"conv1": [[2, 0]]}
    for stage in range(1, 5):
        keys = ("conv1", "conv2", *(["d_conv"] if stage > 1 else []))
        architecture[f"layer{stage}"] = [{key: [[0, 1]] for key in keys}, {key: [[1, 0]] for key in keys[:2]}]
    kernels = {layer.name: rest for layer, *rest in modular.chosen_kernels(network, architecture)}
    assert sorted(kernels) == sorted(names)
    assert kernels["stem.0"] == [2, 0] and kernels["stages.3.0.shortcut.0"] == [0, 1]


def test_an_adapter_adds_to_its_kernel_and_is_trained_alone():
    kernel, adapter = torch.nn.Conv2d(2, 2, 3, padding=1, bias=False), torch.nn.Conv2d(2, 2, 1, bias=False)
    both, pixels = modular.Adapted(kernel, adapter), torch.rand(1, 2, 4, 4)
    assert torch.equal(both(pixels), kernel(pixels) + adapter(pixels))
    assert [name for name, _ in both.named_parameters()] == ["adapter.weight"]


def test_gradients_of_what_is_trained_are_clipped_and_those_of_choices_are_not():
    weight, frozen, choice = (torch.nn.Parameter(torch.ones(shape)) for shape in ((2, 2), (2, 2), (3,)))
    for value in (weight, frozen, choice):
        value.grad = torch.full_like(value, 10.0)
    frozen.requires_grad_(False)
    modular.clip_what_is_trained([choice], 1.0)
    assert choice.grad.tolist() == [10, 10, 10]
    choice.requires_grad_(False)
    modular.clip_what_is_trained([weight, frozen, choice], 2.0)
    assert weight.grad.norm() == pytest.approx(2.0) and frozen.grad.norm() == 20 and choice.grad.tolist() == [10] * 3


def test_every_network_that_a_task_of_soft_gating_tries_is_kept():
    config = dataclasses.replace(CONFIG, methods={"soft_gating": {"channels": 4}})
    learner = modular.RecordedSoftGating(resolve(config, "", "soft_gating"))
    recipe = dataclasses.replace(RECIPE, epochs=1)
    learner.learn(task(0), step(0, recipe))
    assert list(learner.found) == ["fresh 4"]
    learner.learn(task(1), step(1, recipe))
    assert list(learner.found) == [f"fresh {count}" for count in range(5)]
    assert len(learner.initial) == len(learner.batches) == 5 and [len(each) for each in learner.batches] == [6] * 5
    for initial, found in zip(learner.initial, learner.found.values(), strict=True):
        assert initial.keys() == found["tensors"].keys()
        assert not torch.equal(initial["head.weight"], found["tensors"]["head.weight"])
    assert all(torch.equal(a[1], b[1]) for a, b in zip(learner.batches[0], learner.batches[4], strict=True))


def test_a_loader_counts_its_images():
    assert len(modular.Loader([(torch.ones(3, 1), torch.ones(3)), (torch.ones(2, 1), torch.ones(2))]).dataset) == 5


def test_a_task_of_independent_has_the_names_of_a_network_of_its_own():
    network = torch.nn.Module()
    network.feat_extractor = torch.nn.ModuleList(torch.nn.ModuleDict({"conv1": torch.nn.Linear(1, 1)}) for _ in "ab")
    network.fc = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in "ab")
    state = baselines._state(network, "independent", 1)
    assert set(state) == {"conv1.weight", "conv1.bias", "fc.1.weight", "fc.1.bias"}
    assert state["conv1.weight"].data_ptr() == network.feat_extractor[1]["conv1"].weight.data_ptr()


def test_a_folder_without_lmc_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"holds no Methods/lerners/\w+\.py; name a checkout of oleksost/LMC"):
        modular.load_lmc(tmp_path)
