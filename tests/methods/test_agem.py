"""A-GEM's projection."""

from __future__ import annotations

import torch
from torch import nn

from par.methods.agem import project
from par.training.trainer import Batch
from tests.methods import tasks


def parameters_with(*gradients):
    made = [nn.Parameter(torch.zeros(2)) for _ in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.tensor(gradient)
    return made


def test_gradient_against_the_reference_is_projected():
    # g = (1, 2, 0, 0), g_ref = (0, -1, 1, 0): <g, g_ref> = -2, <g_ref, g_ref> = 2, so g + g_ref = (1, 1, 1, 0).
    parameters = parameters_with([1.0, 2.0], [0.0, 0.0])
    project(parameters, [torch.tensor([0.0, -1.0]), torch.tensor([1.0, 0.0])])
    assert [parameter.grad.tolist() for parameter in parameters] == [[1.0, 1.0], [1.0, 0.0]]


def test_other_gradients_stay_bit_for_bit():
    parameters = parameters_with([1.0, 2.0], None)
    project(parameters, [torch.tensor([0.0, 0.1]), torch.tensor([1.0, 0.0])])
    assert parameters[0].grad.tolist() == [1.0, 2.0] and parameters[1].grad is None


def test_missing_gradients_count_as_zero():
    # Current head without reference, old head without gradient: g = (1, 1, 3, 3, 0, 0), g_ref = (-1, 0, 0, 0, 2, 0).
    parameters = parameters_with([1.0, 1.0], [3.0, 3.0], None)
    project(parameters, [torch.tensor([-1.0, 0.0]), None, torch.tensor([2.0, 0.0])])
    gradients = [parameter.grad for parameter in parameters]
    torch.testing.assert_close(gradients[0], torch.tensor([0.8, 1.0]))
    torch.testing.assert_close(gradients[1], torch.tensor([3.0, 3.0]))
    torch.testing.assert_close(gradients[2], torch.tensor([0.4, 0.0]))


def test_no_step_raises_the_loss_on_the_memory(monkeypatch):
    """In training, after the hook, <g, g_ref> is never negative, and before it it was in many steps."""
    products = []

    def recorded(parameters, reference):
        def product():
            pairs = [(p.grad, r) for p, r in zip(parameters, reference, strict=True) if None not in (p.grad, r)]
            return float(sum((gradient * other).double().sum() for gradient, other in pairs))

        before = product()
        against = project(parameters, reference)
        norm = float(sum(other.double().square().sum() for other in reference if other is not None))
        products.append((before / norm, product() / norm))
        return against

    monkeypatch.setattr("par.methods.agem.project", recorded)
    learner = tasks.learner("agem")
    for index in (0, 1):
        learner.learn(tasks.task(index), tasks.step(index))
    conflicts = [before for before, _ in products if before < 0]
    assert len(products) == 8 * 6 and len(conflicts) > 4
    assert min(conflicts) < -1e-2 and min(after for _, after in products) > -1e-5


def test_reference_is_the_gradient_on_the_memory(monkeypatch):
    found = {}

    def recorded(parameters, reference):
        found["reference"] = reference
        return torch.tensor(False)

    monkeypatch.setattr("par.methods.agem.project", recorded)
    learner = tasks.learner("agem", per_class=2)
    learner.learn(tasks.task(0), tasks.step(0))
    task, step = tasks.task(1), tasks.step(1)

    class Draw:
        def draw(self, count):
            found["count"] = count
            return {"rows": torch.arange(6)}

        def batch(self, drawn):
            rows = drawn["rows"]
            return tasks.task(0).train.batch(rows), tasks.task(0).train.labels[rows], torch.zeros(6, dtype=torch.int64)

    learner.current = task
    learner.start_task(task, step)
    learner.recall = Draw()
    learner.requires_grad_(True).eval()
    rows = torch.arange(8)
    (drawn,) = learner.draw([8])
    learner.loss(Batch(task.train.batch(rows), task.train.labels[rows], rows, drawn)).backward()
    learner.after_backward()
    assert found["count"] == 8
    images, labels, _ = Draw().batch(drawn)
    loss = nn.functional.cross_entropy(learner.logits(images, 0), labels)
    trunk = list(learner.trunk.parameters())
    for ours, expected in zip(found["reference"], torch.autograd.grad(loss, trunk), strict=False):
        torch.testing.assert_close(ours, expected)
    assert found["reference"][-1] is None and len(found["reference"]) == len(trunk) + 4  # heads of tasks 0 and 1
