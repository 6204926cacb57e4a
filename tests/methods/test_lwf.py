"""LwF's loss."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch.nn import functional

from par.training.losses import distillation
from par.training.trainer import Batch
from tests.methods import tasks

SHORT = replace(tasks.RECIPE, epochs=1)


def test_distillation_on_hand_numbers():
    # Halved logits ln 3 and 0 give the teacher (3/4, 1/4), the student is uniform: -(3/4 + 1/4) ln(1/2) = ln 2.
    teacher, student = torch.tensor([[2 * math.log(3), 0.0]]), torch.zeros(1, 2)
    assert math.isclose(distillation(student, teacher, 2.0).item(), math.log(2), rel_tol=1e-6)
    # Student (9/10, 1/10) at temperature 2: -(3/4 ln 9/10 + 1/4 ln 1/10).
    student = torch.tensor([[2 * math.log(9), 0.0]])
    expected = -(0.75 * math.log(0.9) + 0.25 * math.log(0.1))
    assert math.isclose(distillation(student, teacher, 2.0).item(), expected, rel_tol=1e-6)


def third_task(**hyper):
    """A learner in the middle of its third task; its tasks have 3, 2 and 3 classes. And a batch of that task."""
    learner = tasks.learner("lwf", **hyper)
    for index, n_classes in enumerate((3, 2)):
        learner.learn(tasks.task(index, n_classes=n_classes), tasks.step(index, SHORT))
    learner.current = tasks.task(2)
    learner.start_task(learner.current, tasks.step(2, SHORT))
    with torch.no_grad():
        for parameter in learner.parameters():  # a student that is not its teacher
            parameter.mul_(1.1)
    rows = torch.arange(8)
    return learner.eval(), Batch(learner.current.train.batch(rows), learner.current.train.labels[rows], rows)


def test_loss_is_cross_entropy_plus_the_sum_over_old_heads():
    learner, batch = third_task(weight=3.0, temperature=2.0)
    old_trunk, old_heads = learner.teacher
    expected = functional.cross_entropy(learner.logits(batch.images, 2), batch.labels)
    for task in (0, 1):
        teacher = functional.softmax(old_heads(old_trunk(batch.images), task) / 2.0, dim=1)
        student = functional.log_softmax(learner.logits(batch.images, task) / 2.0, dim=1)
        expected = expected - 3.0 * (teacher * student).sum(dim=1).mean()
    torch.testing.assert_close(learner.loss(batch), expected)


def test_all_heads_are_trained_and_the_teacher_is_not():
    learner, batch = third_task()
    learner.requires_grad_(True)
    learner.loss(batch).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in learner.heads.parameters())
    assert all(parameter.grad is None for part in learner.teacher for parameter in part.parameters())


def test_teacher_is_never_saved_and_dropped_at_the_end():
    learner, _ = third_task()
    names = set(learner.state_dict())
    learner.end_task(learner.current, tasks.step(2))
    assert set(learner.state_dict()) == names and learner.teacher == () and learner.n_state() == 0


def test_distillation_keeps_old_outputs():
    gentle = replace(tasks.RECIPE, epochs=16, learning_rate=0.02)
    drifts = {}
    for weight in (0.0, 20.0):
        first = tasks.learner("lwf", weight=weight)
        first.learn(tasks.task(0), tasks.step(0))
        drifts[weight] = [drift(first, second, gentle) for second in (1, 2, 3)]
    # 0.37 of it with AVX-512; a single task after eight epochs at 0.05: 0.57 to 0.94, by the kernels
    assert sum(drifts[20.0]) < 0.6 * sum(drifts[0.0]), drifts


def drift(first, second, recipe):
    """How far a second task moves the probabilities that the first one's head gives to its images."""
    learner, task = copy.deepcopy(first), tasks.task(second)
    images = task.train.batch(torch.arange(48))
    before = learner.logits(images, 0).softmax(dim=1)
    learner.learn(task, tasks.step(second, recipe))
    return float((learner.logits(images, 0).softmax(dim=1) - before).abs().mean())
