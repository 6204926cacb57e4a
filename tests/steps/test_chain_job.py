"""Chains of steps: resume, workers, what is predicted, what is shared; on a tiny stream of scikit-learn's digits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from par.cells.genotype import DARTS_V1
from par.config import Config, ExpertSettings, NetworkSettings, Recipe
from par.settings import resolve
from par.steps.chain_job import ChainJob, ChainTask, assemble, plan_chains
from par.steps.store import Store
from par.steps.workers import run_jobs
from par.streams import load_stream
from par.training import trainer
from par.training.images import Images
from tests.steps.streams import built

DEFINITION = """
image_size: 8
augment: [crop]
class_splits:
  - {source: digits, classes_per_task: 3, train: 12, valid: 8, test: 10}
"""
CONFIG = Config(
    preset="test",
    streams=("tiny",),
    seeds=(0,),
    methods={},
    recipe=Recipe(epochs=2, batch_size=8, learning_rate=0.05),
    network=NetworkSettings(width=8),
    expert=ExpertSettings(cells=2, channels=4),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return built(tmp_path_factory.mktemp("streams"), DEFINITION)


def job(directory, chain=(0, 1, 2), method="finetune", config=CONFIG, head_only=(), learner=None) -> ChainJob:
    genotype = DARTS_V1.to_json() if method == "par" else None
    planned = tuple(ChainTask(index, genotype, index in head_only) for index in chain)
    settings = dataclasses.replace(resolve(config, "tiny", method), learner=learner or method)
    return ChainJob(settings, directory, 0, planned, (36,) * len(chain), config.predict, torch.device("cpu"))


def run(*jobs, store, workers=1):
    outcome = run_jobs(jobs, store, workers, "test")
    assert not outcome.failures, outcome.failures
    return outcome


def equal(one, other) -> bool:
    """Whether two runs hold the same predictions and the same states, bit for bit."""
    same_predictions = one.predictions.keys() == other.predictions.keys() and all(
        np.array_equal(one.predictions[name], other.predictions[name]) for name in one.predictions
    )
    states = [[model["state"]["tensors"] for model in found.models] for found in (one, other)]
    return same_predictions and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(*states, strict=True)
    )


@pytest.mark.parametrize("method", ["finetune", "par"])
def test_resumed_after_any_step_is_bit_identical_to_straight(directory, tmp_path, method):
    straight = Store(tmp_path / "straight")
    run(job(directory, method=method), store=straight)
    expected = assemble([job(directory, method=method)], straight)
    for finished in (1, 2):
        store = Store(tmp_path / f"resumed{finished}")
        run(job(directory, chain=range(finished), method=method), store=store)
        outcome = run(job(directory, method=method), store=store)
        assert (outcome.steps_computed, outcome.steps_reused) == (3 - finished, finished)
        assert equal(assemble([job(directory, method=method)], store), expected)


@pytest.mark.slow
def test_two_workers_give_the_same_bits_as_one(directory, tmp_path):
    jobs = [job(directory), job(directory, method="par"), *(job(directory, (i,), "independent") for i in range(3))]
    stores = []
    for workers in (1, 2):
        stores.append(Store(tmp_path / str(workers)))
        run(*jobs, store=stores[-1], workers=workers)
    for one in jobs:
        assert equal(assemble([one], stores[0]), assemble([one], stores[1]))


def test_predictions_are_those_of_the_learner_on_the_test_images(directory, tmp_path):
    store = Store(tmp_path)
    run(job(directory), store=store)
    found = assemble([job(directory)], store)
    assert sorted(found.predictions) == ["0/0", "1/0", "1/1", "2/0", "2/1", "2/2"]
    learner = job(directory).restored(found.models[0])
    for task in load_stream(directory).tasks:
        test = task.split("test")
        images = Images(test.images, test.labels, task.mean, task.std)
        predicted = trainer.predict_classes(lambda batch, index=task.index: learner.logits(batch, index), images)
        assert np.array_equal(found.predictions[f"2/{task.index}"], predicted)
        assert found.predictions[f"2/{task.index}"].dtype == np.uint8


def test_ends_predicts_the_diagonal_and_the_last_row_and_shares_the_training(directory, tmp_path):
    store = Store(tmp_path)
    run(job(directory), store=store)
    ends = job(directory, config=dataclasses.replace(CONFIG, predict="ends"))
    assert run(ends, store=store).steps_computed == 0
    found = assemble([ends], store)
    assert sorted(found.predictions) == ["0/0", "1/1", "2/0", "2/1", "2/2"]


def test_more_predictions_are_made_from_stored_states_without_training(directory, tmp_path):
    store = Store(tmp_path)
    ends = job(directory, config=dataclasses.replace(CONFIG, predict="ends"))
    run(ends, store=store)
    assert run(job(directory), store=store).steps_computed == 0
    fresh = Store(tmp_path / "fresh")
    run(job(directory), store=fresh)
    assert equal(assemble([job(directory)], store), assemble([job(directory)], fresh))


def test_head_only_leaves_the_expert_and_the_old_logits_as_they_were(directory, tmp_path):
    store = Store(tmp_path)
    jobs = {flag: job(directory, (0, 1), "par", head_only=(1,) if flag else ()) for flag in (True, False)}
    run(*jobs.values(), store=store)
    frozen, joined = (assemble([jobs[flag]], store) for flag in (True, False))
    first = assemble([job(directory, (0,), "par")], store).models[0]["state"]["tensors"]
    trunk = [name for name in first if name.startswith("trunk.")]
    after = frozen.models[0]["state"]["tensors"]
    assert trunk and all(torch.equal(first[name], after[name]) for name in trunk)
    moved = joined.models[0]["state"]["tensors"]
    assert any(not torch.equal(first[name], moved[name]) for name in trunk)


@pytest.mark.parametrize("train_old_heads", [True, False])
def test_old_heads_move_only_if_asked(directory, tmp_path, train_old_heads):
    settings = dataclasses.replace(CONFIG.distillation, train_old_heads=train_old_heads)
    joining = job(directory, (0, 1), "par", config=dataclasses.replace(CONFIG, distillation=settings))
    store = Store(tmp_path)
    run(joining, store=store)
    name = "heads.by_task.0.weight"
    before = store.get(joining.step_keys()[0])["state"]["tensors"][name]
    after = store.get(joining.step_keys()[1])["state"]["tensors"][name]
    assert torch.equal(before, after) == (not train_old_heads)


def test_a_step_is_shared_exactly_when_nothing_it_depends_on_differs(directory):
    base = job(directory, method="par").step_keys()
    longer = dataclasses.replace(CONFIG, recipe=dataclasses.replace(CONFIG.recipe, epochs=3))
    lighter = dataclasses.replace(CONFIG, distillation=dataclasses.replace(CONFIG.distillation, weight=0.5))
    elsewhere = dataclasses.replace(CONFIG, workers=7, alpha=0.1, network=NetworkSettings(width=16), data_dir="x")
    assert job(directory, method="par", config=longer).step_keys()[0] != base[0]
    assert job(directory, method="par", config=lighter).step_keys()[0] != base[0]
    assert job(directory, method="par", head_only=(1,)).step_keys()[:2] != base[:2]
    assert job(directory, method="par", config=elsewhere, learner="variant").step_keys() == base
    assert job(directory, (0, 2), "par").step_keys()[0] == base[0]
    assert job(directory, (0, 2), "par").step_keys()[1] not in base
    assert job(directory, method="finetune").step_keys()[0] != base[0]
    assert dataclasses.replace(job(directory, method="par"), precision="bf16").step_keys()[0] != base[0]
    assert dataclasses.replace(job(directory, method="par"), capture=False).step_keys() == base
    assert dataclasses.replace(job(directory, method="par"), numerics="portable").step_keys()[0] != base[0]


def test_a_job_learns_in_its_precision(directory, tmp_path):
    store, in_float32 = Store(tmp_path), job(directory, (0,), "par")
    in_bf16 = dataclasses.replace(in_float32, precision="bf16")
    run(in_float32, in_bf16, store=store)
    losses = [[row["loss"] for row in assemble([one], store).log] for one in (in_float32, in_bf16)]
    assert losses[0] != losses[1] and losses[0][0] == pytest.approx(losses[1][0], rel=0.05)


@pytest.mark.parametrize("method, finished", [("finetune", 0), ("finetune", 2), ("soft_gating", 0)])
def test_progress_ends_at_the_planned_number_of_images(directory, tmp_path, method, finished):
    """Also with steps from the store, and where candidates (soft gating's expansions) train on far more images."""
    config = dataclasses.replace(CONFIG, methods={"soft_gating": {"channels": 4}})
    store, seen, whole = Store(tmp_path), [], job(directory, method=method, config=config)
    run(*([job(directory, range(finished), method, config)] if finished else []), store=store)
    whole.run(store, seen.append)
    assert sum(seen) == whole.cost() == 2 * 3 * 36
    assert min(seen) >= 0


def test_a_failing_chain_does_not_stop_the_others(directory, tmp_path):
    diverging = dataclasses.replace(
        CONFIG, recipe=dataclasses.replace(CONFIG.recipe, learning_rate=1e30, clip_norm=None)
    )
    bad, good = job(directory, (0,), config=diverging, learner="bad"), job(directory, (0,))
    store = Store(tmp_path)
    outcome = run_jobs([bad, good], store, 1, "test")
    ((label, failure),) = outcome.failures
    assert label == bad.label and "loss is nan in epoch 0" in failure.text and not failure.is_bug
    assert store.get(good.step_keys()[0]) is not None and store.get(bad.step_keys()[0]) is None


def test_counts_add_up_over_chains(directory, tmp_path):
    store = Store(tmp_path)
    jobs = [job(directory, (index,), "independent") for index in range(3)]
    run(*jobs, store=store)
    found = assemble(jobs, store)
    one = found.steps[0]["n_params"]
    assert [step["n_params"] for step in found.steps] == [one, 2 * one, 3 * one]
    assert [step["chain"] for step in found.steps] == [0, 1, 2]
    assert [row["task"] for row in found.log] == [0, 0, 1, 1, 2, 2]


def test_finetune_and_independent_begin_alike_on_the_first_task(directory, tmp_path):
    """Draws are named by seed and task, so methods are compared on the same initial weights and batches."""
    store = Store(tmp_path)
    jobs = [job(directory, (0,)), job(directory, (0,), "independent")]
    run(*jobs, store=store)
    assert equal(assemble(jobs[:1], store), assemble(jobs[1:], store))


def test_how_methods_divide_a_stream():
    routed = [[ChainTask(0), ChainTask(2)], [ChainTask(1)]]
    indices = {
        name: [[planned.index for planned in chain] for chain in plan_chains(name, 3, routed)]
        for name in ("finetune", "independent", "par")
    }
    assert indices == {"finetune": [[0, 1, 2]], "independent": [[0], [1], [2]], "par": [[0, 2], [1]]}
