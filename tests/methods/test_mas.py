"""MAS's importance against brute force."""

from __future__ import annotations

import torch

from tests.methods.importance import assert_same_importance, learned, mean_strength


def test_abs_is_the_mean_absolute_gradient_of_the_output_norm():
    learner = learned("mas")
    expected = mean_strength(learner, lambda logits, _: logits.square().sum().sqrt(), torch.abs)
    assert_same_importance(learner.importance, expected)


def test_squared_is_the_mean_squared_gradient_of_the_mean_squared_output():
    learner = learned("mas", importance="squared")
    expected = mean_strength(learner, lambda logits, _: logits.square().mean(), torch.square)
    assert_same_importance(learner.importance, expected)


def test_minibatch_gradients_have_the_batch_size_as_a_factor_when_squared_only():
    factors = {}
    for importance in ("abs", "squared"):
        learner = learned("mas", importance=importance, gradients="minibatch")
        gradient = torch.tensor([-0.5, 2.0])
        factors[importance] = learner.strength(gradient, 8).tolist()
        assert torch.all(learner.importance >= 0) and learner.importance.max() > 0
    assert factors == {"abs": [0.5, 2.0], "squared": [2.0, 32.0]}
