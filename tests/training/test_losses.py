"""Losses on hand numbers."""

from __future__ import annotations

import math

import pytest
import torch

from par.training.losses import distillation


def test_distillation_on_hand_numbers():
    student = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    teacher = torch.tensor([[0.0, 2.0], [4.0, 0.0]])

    def softened(a: float, b: float) -> tuple[float, float]:
        e, f = math.exp(a / 2), math.exp(b / 2)
        return e / (e + f), f / (e + f)

    rows = []
    for (a, b), (c, d) in zip(student.tolist(), teacher.tolist()):
        p, q = softened(a, b), softened(c, d)
        rows.append(-(q[0] * math.log(p[0]) + q[1] * math.log(p[1])))
    assert float(distillation(student, teacher, 2.0)) == pytest.approx(sum(rows) / 2, abs=1e-6)


def test_distillation_equals_the_public_codes_form():
    """Softmax, power 1/T, renormalise (sources.md#distillation); its epsilon of 1e-5 is the tolerance."""
    torch.manual_seed(0)
    student, teacher, temperature = torch.randn(16, 5), torch.randn(16, 5), 2.0
    p, q = student.softmax(1) ** (1 / temperature), teacher.softmax(1) ** (1 / temperature)
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    assert float(distillation(student, teacher, temperature)) == pytest.approx(
        float(-(q * p.log()).sum(1).mean()), abs=1e-5
    )


def test_no_gradient_reaches_the_teacher():
    student, teacher = torch.zeros(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    distillation(student, teacher, 2.0).backward()
    assert teacher.grad is None and student.grad is not None
