"""Experience replay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from par.methods.bases.memory import Recall
from par.training.trainer import Batch
from tests.methods import tasks

SHORT = replace(tasks.RECIPE, epochs=1)


def test_loss_is_the_mean_over_the_joined_batch_each_image_through_its_own_head():
    learner = tasks.learner("er", per_class=4)
    for index, n_classes in enumerate((3, 2)):
        learner.learn(tasks.task(index, n_classes=n_classes), tasks.step(index, SHORT))
    task = learner.current = tasks.task(2)
    learner.start_task(task, tasks.step(2, SHORT))

    def recall():
        return Recall(learner.memory, learner.tasks, task.train.augment, torch.Generator().manual_seed(0))

    rows = torch.arange(8)
    drawn = recall().draw(8)
    batch = Batch(task.train.batch(rows), task.train.labels[rows], rows, drawn)
    images, labels, positions = recall().batch(drawn)
    assert len(labels) == 8 and set(positions.tolist()) == {0, 1}
    learner.train()  # statistics of the joined batch
    features = learner.trunk(torch.cat([batch.images, images]))
    losses = [functional.cross_entropy(learner.heads(features[:8], 2), batch.labels, reduction="sum")]
    for feature, label, position in zip(features[8:], labels, positions, strict=True):
        losses.append(functional.cross_entropy(learner.heads(feature[None], int(position)), label[None]))
    learner.recall = recall()
    torch.testing.assert_close(learner.loss(batch), torch.stack(losses).sum() / 16)


def test_ring_memory_after_two_tasks():
    learner = tasks.learner("er", per_class=4)
    for index in (0, 1):
        learner.learn(tasks.task(index), tasks.step(index, SHORT))
    memory = learner.memory
    assert len(memory) == len(memory.positions) == 24
    for position in (0, 1):
        mine = memory.positions == position
        assert torch.bincount(memory.labels[mine]).tolist() == [4, 4, 4]
        originals = tasks.task(position).train.pixels.permute(0, 3, 1, 2)
        assert all((originals == image).flatten(1).all(dim=1).any() for image in memory.pixels[mine])
    assert learner.n_state() == 24 * (3 * 16 * 16 + 2)


def test_reservoir_holds_more_of_a_larger_task():
    learner = tasks.learner("er", per_class=8, mode="reservoir")
    learner.learn(tasks.task(0, per_class=40), tasks.step(0, SHORT))
    learner.learn(tasks.task(1, per_class=10), tasks.step(1, SHORT))
    counts = torch.bincount(learner.memory.positions)
    assert int(counts.sum()) == 48 and counts[0] == 24  # all that is left of task 0: a uniform sample has 38 of it
    learner.learn(tasks.task(2, per_class=40), tasks.step(2, SHORT))
    assert len(learner.memory) == 72


@pytest.mark.parametrize("mode", ["ring", "reservoir"])
def test_replay_forgets_less_than_finetune(mode):
    accuracy = {}
    for name, hyper in (("finetune", {}), ("er", {"mode": mode})):
        learner = tasks.learner(name, **hyper)
        for index in range(3):
            learner.learn(tasks.task(index), tasks.step(index))
        valid = tasks.task(0).valid
        logits = learner.logits(valid.batch(torch.arange(len(valid))), 0)
        accuracy[name] = float((logits.argmax(dim=1) == valid.labels).float().mean())
    assert accuracy["er"] > accuracy["finetune"] + 0.2
