"""Brute force for the importances of EWC and MAS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from par.methods.bases.method import Method
from tests.methods import tasks

SHORT = replace(tasks.RECIPE, epochs=2)


def learned(name: str, **hyper) -> Method:
    """A learner after one task."""
    learner = tasks.learner(name, **hyper)
    learner.learn(tasks.task(0), tasks.step(0, SHORT))
    return learner


def mean_strength(learner: Method, value: Callable[[Tensor, Tensor], Tensor], strength: Callable[[Tensor], Tensor]):
    """Mean over task 0's images, one at a time, of ``strength`` of the gradient of ``value(logits, label)``."""
    train, parameters = tasks.task(0).train, list(learner.trunk.parameters())
    learner.trunk.requires_grad_(True)
    total = 0
    for row in range(len(train)):
        rows = torch.tensor([row])
        logits = learner.logits(train.batch(rows), 0)[0]
        gradients = torch.autograd.grad(value(logits, train.labels[row]), parameters)
        total = total + torch.cat([strength(gradient).reshape(-1) for gradient in gradients])
    learner.trunk.requires_grad_(False)
    return total / len(train)


def assert_same_importance(ours: Tensor, expected: Tensor) -> None:
    """Equal up to rounding, and not trivially so."""
    assert expected.count_nonzero() > 0.2 * len(expected)  # at 1 x 1 pixels only the centres of kernels matter
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=float(expected.max()) * 1e-6)
