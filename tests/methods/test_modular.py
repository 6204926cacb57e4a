"""What all methods that add modules for every task promise."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from par.methods.bases.method import Method
from par.methods.bases.modular import Candidate, Modular
from par.settings import resolve
from tests.methods import modular_cases as cases
from tests.methods.tasks import through_a_file

METHODS = tuple(cases.HYPER)


@cache
def learned(name: str) -> tuple[Method, list[dict[str, Any]], list[torch.Tensor]]:
    """A learner of two tasks, what it saved after each, and its logits on task 0 after each."""
    method, saved, outputs = cases.learner(name), [], []
    for task_id in range(2):
        log = method.learn(cases.task(task_id), cases.step(task_id, cases.RECIPE))
        assert len(log) == cases.RECIPE.epochs
        saved.append(method.save())
        outputs.append(cases.logits(method, 0))
    return method, saved, outputs


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first["tasks"] == second["tasks"]
    assert first["tensors"].keys() == second["tensors"].keys()
    for name, value in first["tensors"].items():
        assert torch.equal(value, second["tensors"][name]), name


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_forgotten_bit_for_bit(name):
    _, (before, after), (old, new) = learned(name)
    assert torch.equal(old, new)
    assert old.std() > 0
    for key, value in before["tensors"].items():
        assert torch.equal(value, after["tensors"][key]), key


@pytest.mark.parametrize("name", METHODS)
def test_a_restored_learner_goes_on_bit_for_bit(name):
    _, (before, after), _ = learned(name)
    method = cases.learner(name)
    method.restore(before)
    method.learn(cases.task(1), cases.step(1, cases.RECIPE))
    assert_same(method.save(), after)


@pytest.mark.parametrize("name", METHODS)
def test_the_saved_state_is_plain_and_complete(name):
    original, (_, after), _ = learned(name)
    method = cases.learner(name)
    method.restore(through_a_file(after))
    for task_id in range(2):
        assert torch.equal(cases.logits(method, task_id), cases.logits(original, task_id))
    assert method.n_params() == original.n_params() and method.n_state() == original.n_state()
    assert_same(method.save(), after)


@pytest.mark.parametrize("name", METHODS)
def test_a_learned_learner_is_frozen(name):
    method, _, _ = learned(name)
    assert not any(parameter.requires_grad for parameter in method.parameters())
    assert not any(module.training for module in method.modules())


@pytest.mark.parametrize("name", METHODS)
def test_predictions_depend_on_their_image_alone(name):
    method, _, _ = learned(name)
    images = cases.task(1).valid.batch(torch.arange(24))
    whole = method.logits(images, 1)
    for size in (1, 7):
        parts = torch.cat([method.logits(part, 1) for part in images.split(size)])
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method.logits(images.flip(0), 1).flip(0), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [28, 32, 84])
def test_any_image_size_is_predicted(name, size):
    method, _, _ = learned(name)
    assert method.logits(torch.zeros(2, 3, size, size), 1).shape == (2, 3)


@pytest.mark.parametrize("name", METHODS)
def test_training_goes_above_chance(name):
    method, _, _ = learned(name)
    accuracies = [cases.accuracy(method, task_id) for task_id in range(2)]
    assert max(accuracies) > 0.5  # chance is a third


class Constant(Modular):
    """A method whose candidates are told apart by the accuracy they are remembered with."""

    def build(self, record):
        return torch.nn.Linear(2, 2)


def test_the_first_of_the_best_candidates_is_kept_and_the_others_leave_nothing():
    method = Constant(resolve(cases.CONFIG, "", "independent"))
    accuracies = {"a": 0.5, "b": 0.7, "c": 0.7, "d": 0.1}

    def remember(part, compute):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            method.grow(method.record(cases.task(0)) | {"name": part})
            tensors = method.own(0).state_dict()
            record = method.tasks[-1]
            method.shrink()
        assert not method.tasks and not method.parts and not method.heads.by_task
        return {"record": record, "tensors": tensors, "log": [part], "accuracy": accuracies[part]}

    log = method.learn_best(cases.task(0), cases.step(0, remember=remember), [Candidate(name) for name in accuracies])
    assert log == ["b"] and method.tasks[0]["name"] == "b"
