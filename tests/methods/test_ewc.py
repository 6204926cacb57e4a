"""EWC's Fisher information against brute force."""

from __future__ import annotations

import pytest
import torch

from par import seeding
from par.training import trainer
from tests.methods import tasks
from tests.methods.importance import SHORT, assert_same_importance, learned, mean_strength


@pytest.mark.parametrize("labels", ["true", "predicted"])
def test_exact_fisher_is_the_mean_of_single_images_squared_gradients(labels):
    learner = learned("ewc", labels=labels)

    def log_likelihood(logits, label):
        return logits.log_softmax(dim=0)[label if labels == "true" else logits.argmax()]

    assert_same_importance(learner.importance, mean_strength(learner, log_likelihood, torch.square))


def test_minibatch_fisher_is_the_mean_over_batches_of_b_times_the_squared_mean_gradient():
    learner, step = learned("ewc", fisher="minibatch"), tasks.step(0, SHORT)
    train, parameters = tasks.task(0).train, list(learner.trunk.parameters())
    learner.trunk.requires_grad_(True)
    order = seeding.torch_generator(step.key, "importance/order")
    augmentation = seeding.torch_generator(step.key, "importance/augmentation")
    expected = []
    for rows in trainer.batches(len(train), step.recipe.batch_size, order):
        logits = learner.logits(train.batch(rows, augmentation), 0)
        loss = torch.nn.functional.cross_entropy(logits, train.labels[rows])
        gradients = torch.autograd.grad(loss, parameters)
        expected.append(len(rows) * torch.cat([gradient.reshape(-1) for gradient in gradients]) ** 2)
    assert_same_importance(learner.importance, torch.stack(expected).mean(dim=0))


def test_samples_limits_the_images():
    few, all_images = learned("ewc", samples=5), learned("ewc", samples=None)
    assert not torch.allclose(few.importance, all_images.importance)
    torch.testing.assert_close(all_images.importance, learned("ewc").importance)  # 48 images, fewer than 1024


def test_penalty_keeps_important_weights():
    moved = {}
    for weight in (0.0, 100.0):
        learner = learned("ewc", weight=weight)
        importance, before = learner.importance.clone(), learner.anchor.clone()
        learner.learn(tasks.task(1), tasks.step(1))
        after = torch.cat([parameter.reshape(-1) for parameter in learner.trunk.parameters()])
        moved[weight] = float((importance * (after - before).square()).sum())
    assert moved[100.0] < 0.3 * moved[0.0]
