"""LMC: sizes, relevance, z-scores and expansion, projection phase, running statistics."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from par.methods.lmc import LocalModule, relevance
from tests.methods import modular_cases as cases


def n_params(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def trained(**hyper):
    """A learner of task 0."""
    method = cases.learner("lmc", **hyper)
    method.learn(cases.task(0), cases.step(0))
    return method


def test_functional_parts_have_the_authors_sizes():
    assert n_params(LocalModule(3, 64).functional) == 1_920
    assert n_params(LocalModule(64, 64).functional) == 37_056


@pytest.mark.parametrize("size", [8, 16, 21, 84])
def test_structural_loss_is_the_reconstruction_error_of_each_image(size):
    module, inputs = LocalModule(3, 4).eval(), torch.randn(5, 3, size, size)
    outputs, losses = module(inputs, through=False)
    error = module.structural(outputs)[:, :, :size, :size] - torch.sigmoid(inputs)
    assert outputs.shape == (5, 4, (size + 1) // 2, (size + 1) // 2)
    torch.testing.assert_close(losses, error.square().flatten(1).mean(1))


@pytest.mark.parametrize("through", [False, True])
def test_the_structural_gradient_reaches_below_in_the_projection_phase_alone(through):
    module, inputs = LocalModule(3, 4), torch.randn(5, 3, 16, 16, requires_grad=True)
    module(inputs, through)[1].sum().backward()
    assert (inputs.grad is not None and bool(inputs.grad.any())) == through
    assert all(parameter.grad is not None for parameter in module.structural.parameters())
    assert all((parameter.grad is not None) == through for parameter in module.functional[0].parameters())


def test_relevance_by_hand():
    losses, means = torch.tensor([[0.1, 0.2], [0.4, 0.1]]), torch.tensor([0.3, 0.1])
    found = relevance(losses, means, temperature=0.5, prior_temperature=1.0)
    for row, (first, second) in enumerate(losses.tolist()):
        a, b = first**-2 / 0.3, second**-2 / 0.1
        assert found[row].tolist() == pytest.approx([a / (a + b), b / (a + b)], rel=1e-5)
    sharp = relevance(torch.tensor([[0.0, 1e-3]]), torch.tensor([0.0, 1.0]), 0.1, 0.01)
    assert sharp.tolist() == [[1.0, 0.0]]


def test_z_scores_are_those_of_batch_means():
    method = trained()
    statistics = method.tasks[0]["statistics"]
    method.grow(method.record(cases.task(1)) | {"fresh": []})
    step = cases.step(1)
    means, deviations = method._deviations(cases.task(1), step, 0)
    images = cases.task(1).train.batch(torch.arange(24))
    with torch.no_grad():
        losses = method.parts["0"].blocks["0"](images, False)[1]
    mean, deviation = statistics["0"]
    assert float(means[0]) == pytest.approx(float(losses.mean()), rel=1e-5)
    expected = (float(losses.mean()) - mean) / (deviation / math.sqrt(8))
    assert deviations == [pytest.approx(expected, rel=1e-3)]


def test_statistics_are_those_of_the_tasks_own_images():
    method = trained()
    images = cases.task(0).train.batch(torch.arange(24))
    with torch.no_grad():
        losses = method.parts["0"].blocks["0"](images, False)[1]
    assert method.tasks[0]["statistics"]["0"] == pytest.approx([float(losses.mean()), float(losses.std())], rel=1e-3)
    assert set(method.tasks[0]["statistics"]) == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    "deviations, fresh",
    [
        ([[5.0], [3.9], [4.1], [-9.0]], [0, 2]),
        ([[4.0], [0.0], [0.0], [0.0]], []),
        ([[9.0], [9.0], [9.0], [9.0]], [0, 1, 2, 3]),
    ],
)
def test_a_module_is_added_where_all_modules_find_the_task_foreign(monkeypatch, deviations, fresh):
    method = trained(threshold=4.0)
    asked = []

    def deviate(task, step, layer):
        asked.append(layer)
        return torch.ones(1), deviations[layer]

    monkeypatch.setattr(method, "_deviations", deviate)
    method.learn(cases.task(1), cases.step(1))
    assert asked == [0, 1, 2, 3] and method.tasks[1]["fresh"] == fresh
    assert set(method.parts["1"].blocks) == {str(layer) for layer in fresh}
    assert [len(getattr(method.parts["1"], f"losses{layer}")) for layer in range(4)] == [
        1 + (layer in fresh) for layer in range(4)
    ]


def test_one_module_that_knows_the_task_is_enough():
    method = trained(threshold=0.5, projection_epochs=0)
    method.tasks[0]["statistics"] = {str(layer): [-1.0, 1e-6] for layer in range(4)}
    method.learn(cases.task(1), cases.step(1))
    assert method.tasks[1]["fresh"] == [0, 1, 2, 3]
    method.tasks[1]["statistics"] = {str(layer): [0.0, 1e9] for layer in range(4)}  # everything is close to it
    method.learn(cases.task(2), cases.step(2))
    assert method.tasks[2]["fresh"] == []


def test_a_task_smaller_than_a_batch_is_judged_as_the_batch_it_is():
    method, found = trained(), []
    method.grow(method.record(cases.task(1)) | {"fresh": []})
    for batch_size in (24, 256):  # the task has 24 images
        step = cases.step(1, replace(cases.QUICK, batch_size=batch_size))
        found.append(method._deviations(cases.task(1), step, 0)[1])
    assert found[0] == found[1]


def test_a_task_that_decodes_far_better_is_foreign_too():
    method = trained()
    method.grow(method.record(cases.task(1)) | {"fresh": []})
    step = cases.step(1)
    for mean in (-1.0, 1.0):  # both far from any structural loss
        method.tasks[0]["statistics"]["0"] = [mean, 0.01]
        assert method._deviations(cases.task(1), step, 0)[1][0] > 100


@pytest.mark.parametrize("choice", ["mean", "most_likely"])
def test_a_new_module_starts_as_its_layer_is(choice):
    method = cases.grown("lmc", [{"fresh": [0, 1, 2, 3]}, {"fresh": [1]}, {"fresh": []}], initialise_from=choice)
    method.current = cases.LearningTask(2, 10, cases.task(2).train, cases.task(2).valid)
    method._expand(1, torch.tensor([0.3, 0.2]))
    first, second, new = (method.parts[str(owner)].blocks["1"].functional[0].weight for owner in range(3))
    torch.testing.assert_close(new, (first + second) / 2 if choice == "mean" else second)
    assert method.tasks[2]["fresh"] == [1] and len(method.parts["2"].losses1) == 3


def test_the_projection_phase_trains_the_new_module_and_the_head_alone():
    method = trained()
    method.grow(method.record(cases.task(1)) | {"fresh": []})
    method.current, step = cases.task(1), cases.step(1)
    method._expand(1, torch.ones(1))
    new = method.parts["1"].blocks["1"]
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method._project(cases.task(1), step, 1)
    changed = {name for name, value in method.state_dict().items() if not torch.equal(value, before[name])}
    own = {f"parts.1.blocks.1.{name}" for name, _ in new.named_parameters()}
    assert own <= changed
    allowed = ("parts.1.blocks.1.", "heads.by_task.1.", "parts.1.losses")
    assert all(name.startswith(allowed) for name in changed)


def test_structural_losses_above_steer_the_new_module_in_its_projection_phase():
    method = trained(structural_weight=1.0)
    method.grow(method.record(cases.task(1)) | {"fresh": []})
    method.current = cases.task(1)
    method._expand(1, torch.ones(1))
    images = cases.task(1).train.batch(torch.arange(8))
    weight = method.parts["1"].blocks["1"].functional[0].weight.requires_grad_(True)
    reached = []
    for projected in (None, 1):
        method._projected = projected
        upper = method._forward(images, 1, by_batch=True)[1][2].sum()
        reached.append(upper.requires_grad and bool(torch.autograd.grad(upper, weight)[0].any()))
    assert reached == [False, True]


def test_running_losses_are_kept_for_evaluation_and_counted():
    method = trained()
    for layer in range(4):
        running = getattr(method.parts["0"], f"losses{layer}")
        assert running.shape == (1,) and float(running) > 0
    assert method.n_state() == 4 * 2 + 4
