"""The quadratic penalty that EWC and MAS share."""

from __future__ import annotations

import pytest
import torch

from par.methods.bases.penalty import flatten
from par.training.trainer import Batch
from tests.methods import tasks


@pytest.fixture
def history():
    """Importances and solutions of three tasks over the weights of the learner of :func:`learner_at`."""
    generator = torch.Generator().manual_seed(0)
    n_weights = len(flatten(learner_at(0).trunk.parameters()))
    importances = torch.rand(3, n_weights, generator=generator)
    importances[:, :5] = 0  # weights that no task needs
    return importances, torch.randn(3, n_weights, generator=generator)


def learner_at(n_tasks: int, importances=(), solutions=(), **hyper):
    """A learner that has gone through tasks with given importances and solutions, in the middle of the next one."""
    learner = tasks.learner("ewc", **hyper)
    for task in range(n_tasks + 1):
        learner.grow(learner.record(tasks.task(task)))
        if task < n_tasks:
            torch.nn.utils.vector_to_parameters(solutions[task], contiguous(learner.trunk))
            learner.estimate = lambda *_, task=task: importances[task]
            learner.end_task(tasks.task(task), tasks.step(task))
    learner.current = tasks.task(n_tasks)
    return learner


def contiguous(trunk):
    for parameter in trunk.parameters():
        parameter.data = parameter.data.contiguous()
    return trunk.parameters()


def penalty_gradient(learner, weights):
    """Gradient of the loss at ``weights``, with a head of zeros through which the cross-entropy has none."""
    torch.nn.utils.vector_to_parameters(weights, contiguous(learner.trunk))
    torch.nn.init.zeros_(learner.heads[learner.current.id].weight)
    learner.eval()
    rows = torch.arange(8)
    train = learner.current.train
    loss = learner.loss(Batch(train.batch(rows), train.labels[rows], rows))
    return flatten(torch.autograd.grad(loss, list(learner.trunk.parameters())))


@pytest.mark.parametrize("merge", ["mean", "sum", "online"])
def test_gradient_is_that_of_the_formula(history, merge):
    importances, solutions = history
    weights = solutions.mean(dim=0) + 0.1
    learner = learner_at(3, importances, solutions, merge=merge, decay=0.5, weight=2.0)
    if merge == "mean":
        expected = 2.0 * importances.mean(dim=0) * (weights - solutions[2])
    elif merge == "online":
        expected = 2.0 * torch.tensor([0.25, 0.5, 1.0]) @ importances * (weights - solutions[2])
    else:
        expected = 2.0 * (importances * (weights - solutions)).sum(dim=0)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(penalty_gradient(learner, weights), expected, rtol=1e-4, atol=1e-5)


def test_first_task_has_no_penalty():
    learner = learner_at(0, weight=1e6)
    learner.importance.fill_(1.0)
    weights = flatten(learner.trunk.parameters()).detach() + 1
    assert torch.all(penalty_gradient(learner, weights) == 0)


def test_state_does_not_grow_with_the_tasks(history):
    importances, solutions = history
    sizes = {n: learner_at(n, importances, solutions, merge="sum").n_state() for n in (1, 3)}
    assert sizes[1] == sizes[3] == 2 * importances.shape[1]
