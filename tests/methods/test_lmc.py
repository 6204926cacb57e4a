"""LMC: sizes, relevance, z-scores and expansion, projection phase, running statistics."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from par import seeding
from par.methods.lmc import LocalModule, relevance
from par.training import trainer
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


def test_the_z_score_is_that_of_the_batch_that_is_most_foreign():
    method = trained()
    statistics = method.tasks[0]["statistics"]
    method.grow(method.record(cases.task(1)) | {"fresh": []})
    step = cases.step(1)
    means, found = method._deviation(cases.task(1), step, 0)
    order = torch.cat(list(trainer.batches(24, 8, seeding.torch_generator(step.key, "statistics"))))
    images = cases.task(1).train.batch(order)
    with torch.no_grad():
        losses = method.parts["0"].blocks["0"](images, False)[1]
    mean, deviation = statistics["0"]
    assert float(means[0]) == pytest.approx(float(losses.mean()), rel=1e-5)
    expected = max(abs(float(batch.mean()) - mean) / (deviation / math.sqrt(8)) for batch in losses.split(8))
    assert found == pytest.approx(expected, rel=1e-3)


def test_the_module_that_knows_a_batch_best_decides_and_the_most_foreign_batch(monkeypatch):
    method = trained()
    method.grow(method.record(cases.task(1)) | {"fresh": [0]})
    method.tasks[0]["statistics"]["0"] = [0.0, 2.0]
    method.tasks[1]["statistics"] = {"0": [1.0, 1.0]}
    batches = [[torch.tensor(rows)] for rows in ([[2.0, 3.0]] * 4, [[9.0, 2.0]] * 4, [[4.0, 5.0]])]
    monkeypatch.setattr(method, "_structural_losses", lambda *_: iter(batches))
    # z-scores of the batches for both modules: 2 and 4, 9 and 2, 2 and 4 (a single image)
    assert method._deviation(cases.task(1), cases.step(1), 0)[1] == pytest.approx(2.0)
    batches[2][0] = torch.tensor([[8.0, 6.0]])
    assert method._deviation(cases.task(1), cases.step(1), 0)[1] == pytest.approx(4.0)


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
        ([5.0, 3.9, 4.1, 0.0], [0, 2]),
        ([4.0, 0.0, 0.0, 0.0], []),
        ([9.0, 9.0, 9.0, 9.0], [0, 1, 2, 3]),
    ],
)
def test_a_module_is_added_where_all_modules_find_the_task_foreign(monkeypatch, deviations, fresh):
    method = trained(threshold=4.0)
    asked = []

    def deviate(task, step, layer):
        asked.append(layer)
        return torch.ones(1), deviations[layer]

    monkeypatch.setattr(method, "_deviation", deviate)
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
        found.append(method._deviation(cases.task(1), step, 0)[1])
    assert found[0] == found[1]


def test_a_task_that_decodes_far_better_is_foreign_too():
    method = trained()
    method.grow(method.record(cases.task(1)) | {"fresh": []})
    step = cases.step(1)
    for mean in (-1.0, 1.0):  # both far from any structural loss
        method.tasks[0]["statistics"]["0"] = [mean, 0.01]
        assert method._deviation(cases.task(1), step, 0)[1] > 100


@pytest.mark.parametrize("choice", ["mean", "most_likely"])
def test_a_new_module_starts_as_its_layer_is(choice):
    records = [{"fresh": [0, 1, 2, 3]}, {"fresh": [1]}, {"fresh": []}]
    method = cases.grown("lmc", records, initialise_from=choice, catch_outliers=False)
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
    for method._projecting in (False, True):
        upper = method._forward(images, 1, by_batch=True)[1][2].sum()
        reached.append(upper.requires_grad and bool(torch.autograd.grad(upper, weight)[0].any()))
    assert reached == [False, True]


def two_fresh(**hyper):
    """A learner in whose second task layers 1 and 2 have a fresh module beside that of the first."""
    method = trained(**hyper)
    method.grow(method.record(cases.task(1)) | {"fresh": []})
    method.current = cases.task(1)
    for layer in (1, 2):
        method._expand(layer, torch.ones(1))
    method.parts["1"].blocks["2"].functional[0].weight.data.mul_(1.5)
    method.requires_grad_(True)
    return method, cases.task(1).train.batch(torch.arange(8))


def test_structural_losses_of_frozen_modules_alone_reach_the_fresh_ones_below():
    method, images = two_fresh()
    method._projecting = True
    weight = method.parts["1"].blocks["1"].functional[0].weight
    _, losses, _ = method._forward(images, 1, by_batch=True)
    reached = {}
    for layer in range(4):
        for number, module in enumerate(losses[layer].sum(dim=0)):
            (gradient,) = torch.autograd.grad(module, weight, retain_graph=True, allow_unused=True)
            reached[layer, number] = gradient is not None and bool(gradient.any())
    expected = {(2, 0), (3, 0)}  # not the fresh one of layer 2, which learns to decode what it gets
    assert {place for place, there in reached.items() if there} == expected


def test_all_structural_losses_count_by_relevance_in_a_projection_phase():
    method, images = two_fresh(structural_weight=10.0)
    batch = trainer.Batch(images, cases.task(1).train.labels[:8], torch.arange(8))
    totals = []
    for method._projecting in (False, True):
        total = method.loss(batch).item()
        logits, losses, weights = method._forward(images, 1, by_batch=True)
        ours = [losses[layer][:, 1] for layer in (1, 2)]
        if method._projecting:
            ours = [layer_losses * weight for layer_losses, weight in zip(losses, weights, strict=True)]
        expected = torch.nn.functional.cross_entropy(logits, batch.labels) + 10 * sum(part.mean() for part in ours)
        assert total == pytest.approx(expected.item(), rel=1e-5)
        totals.append(total)
    assert totals[0] != pytest.approx(totals[1], rel=1e-3)


@pytest.mark.parametrize("mean, caught", [(1e3, True), (None, False)])
def test_a_batch_that_no_old_module_knows_goes_to_the_fresh_one(mean, caught):
    method, images = two_fresh(temperature=1.0, prior_temperature=1.0, threshold=4.0)
    own, _ = method.tasks[0]["statistics"]["1"]
    method._statistics = {1: torch.tensor([[own if mean is None else mean], [1.0]])}
    weights = method._forward(images, 1, by_batch=True)[2][1]
    assert bool((weights[:, 1] > 0.999).all()) == caught
    in_evaluation = method._forward(images, 1, by_batch=False)[2][1]
    assert not (in_evaluation[:, 1] > 0.999).all()


def test_old_modules_are_known_by_their_own_statistics():
    method, _ = two_fresh()
    assert method._statistics.keys() == {1, 2}
    for layer, statistics in method._statistics.items():
        assert statistics.flatten().tolist() == pytest.approx(method.tasks[0]["statistics"][str(layer)])
    assert not two_fresh(catch_outliers=False)[0]._statistics


def test_the_target_of_decoders_is_an_option():
    module, inputs = LocalModule(3, 4, "input").eval(), torch.randn(5, 3, 16, 16)
    outputs, losses = module(inputs, through=False)
    torch.testing.assert_close(losses, (module.structural(outputs) - inputs).square().flatten(1).mean(1))


def test_running_losses_are_kept_for_evaluation_and_counted():
    method = trained()
    for layer in range(4):
        running = getattr(method.parts["0"], f"losses{layer}")
        assert running.shape == (1,) and float(running) > 0
    assert method.n_state() == 4 * 2 + 4
