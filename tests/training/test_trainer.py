"""The training loop on a problem small enough to reason about."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from par.config import Recipe
from par.training import memory, trainer
from par.training.images import Images
from par.training.losses import cross_entropy

RECIPE = Recipe(epochs=4, batch_size=8, learning_rate=0.1)


def two_classes(n: int, seed: int, augment=("flip",)) -> Images:
    """Dark and bright images."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    pixels = rng.integers(0, 100, (n, 3, 8, 8)) + 120 * labels[:, None, None, None]
    return Images(pixels.astype(np.uint8), labels, (0.4,) * 3, (0.2,) * 3, augment)


class Model(trainer.Trainable):
    """A frozen batch norm in front of a convolution and a head, recording what the loop asks of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.BatchNorm2d(3)
        self.trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.calls: list[str] = []
        self.accuracies: list[float] = []

    def modules_to_train(self):
        return [self.trunk, self.head]

    def start_epoch(self, epoch):
        self.calls.append(f"start {epoch}")

    def loss(self, batch):
        assert self.trunk.training and not self.frozen.training
        self.calls.append("loss")
        return cross_entropy(self.predict(batch.images), batch.labels)

    def after_backward(self):
        assert self.head.weight.grad is not None and self.frozen.weight.grad is None
        self.calls.append("gradient")

    def predict(self, images):
        return self.head(self.trunk(self.frozen(images)).mean(dim=(2, 3)))

    def end_epoch(self, epoch, valid_accuracy):
        assert not self.trunk.training
        self.calls.append(f"end {epoch}")
        self.accuracies.append(valid_accuracy)


def train(recipe=RECIPE, n=20, key="k", **options):
    model = Model()
    log = trainer.fit(model, two_classes(n, 0), two_classes(10, 1), recipe, key, **options)
    return model, log


def test_it_learns_and_leaves_everything_frozen():
    model, log = train()
    assert log[-1]["valid_accuracy"] == 1.0 and log[-1]["loss"] < log[0]["loss"]
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())


def test_order_of_the_hooks():
    model, _ = train(dataclasses.replace(RECIPE, epochs=1))
    assert model.calls == ["start 0"] + ["loss", "gradient"] * 3 + ["end 0"]


def test_what_is_not_trained_keeps_parameters_and_buffers():
    before = {name: value.clone() for name, value in Model().frozen.state_dict().items()}
    model, _ = train()
    assert all(torch.equal(value, before[name]) for name, value in model.frozen.state_dict().items())


def test_the_same_key_gives_the_same_bits_and_another_key_others():
    (one, _), (two, _), (other, _) = train(key="a"), train(key="a"), train(key="b")
    assert torch.equal(one.head.weight, two.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)


def test_the_weights_of_the_first_best_epoch_are_restored():
    weights = []

    class Recorder(Model):
        def end_epoch(self, epoch, valid_accuracy):
            super().end_epoch(epoch, valid_accuracy)
            weights.append(self.head.weight.clone())

    model = Recorder()
    recipe = dataclasses.replace(RECIPE, epochs=8, learning_rate=0.4, schedule="constant", clip_norm=None)
    trainer.fit(model, two_classes(20, 0), two_classes(40, 1), recipe, "k")
    best = int(np.argmax(model.accuracies))
    assert best < 7, "the last epoch must not be the first best one, or the test shows nothing"
    assert torch.equal(model.head.weight, weights[best]) and not torch.equal(weights[best], weights[-1])


def test_keep_best_false_keeps_the_last_weights():
    kept, _ = train(dataclasses.replace(RECIPE, epochs=6), keep_best=False)
    again, _ = train(dataclasses.replace(RECIPE, epochs=6))
    assert not torch.equal(kept.head.weight, again.head.weight)


def test_patience_stops_early_and_counts_from_the_best_epoch():
    model, log = train(dataclasses.replace(RECIPE, epochs=30, patience=2))
    assert len(log) == int(np.argmax(model.accuracies)) + 1 + 2


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.1] * 4), ("cosine", [0.1, 0.0853553, 0.05, 0.0146447])],
)
def test_schedules(schedule, expected):
    _, log = train(dataclasses.replace(RECIPE, schedule=schedule))
    assert [row["learning_rate"] for row in log] == pytest.approx(expected, abs=1e-6)


def test_plateau_lowers_the_rate_after_its_patience():
    recipe = dataclasses.replace(RECIPE, epochs=12, schedule="plateau", plateau_patience=1, min_learning_rate=0.001)
    model, log = train(recipe)
    rates = [row["learning_rate"] for row in log]
    reached = model.accuracies.index(1.0)
    assert rates[reached + 2] == pytest.approx(0.1) and rates[reached + 3] == pytest.approx(0.01)
    assert min(rates) == pytest.approx(0.001)


def by_loss(seed: int = 0, **changes):
    """A fit of noise by its validation loss: the log, and the validation loss and weights after every epoch."""

    class Recorder(Model):
        def end_epoch(self, epoch, valid_accuracy):
            super().end_epoch(epoch, valid_accuracy)
            with torch.no_grad():
                logits = self.predict(valid.batch(torch.arange(len(valid))))
            losses.append(float(cross_entropy(logits, valid.labels)))
            weights.append(self.head.weight.clone())

    losses, weights = [], []
    generator = np.random.default_rng(seed)
    train, valid = (
        Images(generator.integers(0, 256, (n, 3, 8, 8)).astype(np.uint8), np.arange(n) % 2, (0.4,) * 3, (0.2,) * 3)
        for n in (20, 30)
    )
    recipe = dataclasses.replace(RECIPE, select_by="loss", **changes)
    model = Recorder()
    return trainer.fit(model, train, valid, recipe, "k"), losses, weights, model


def test_by_loss_the_weights_of_the_lowest_validation_loss_are_restored():
    _, losses, weights, model = by_loss(epochs=8, schedule="constant")
    best = int(np.argmin(losses))
    assert 0 < best < 7 and best != int(np.argmax(model.accuracies)), "or the test shows nothing"
    assert torch.equal(model.head.weight, weights[best])


def test_at_the_floor_a_task_ends_where_a_loop_would_end_it():
    floor = dict(plateau_patience=2, plateau_factor=0.5, min_learning_rate=0.02, stop_at_floor=True)
    log, losses, _, _ = by_loss(epochs=60, schedule="plateau", **floor)
    rate, best, bad, rates = 0.1, float("inf"), 0, []
    for loss in losses:
        rates.append(rate)
        if loss < best:
            best, bad = loss, 0
            continue
        bad += 1
        if bad == 3:
            rate, bad = rate / 2, 0
            if rate < 0.02:
                break
    assert [row["learning_rate"] for row in log] == pytest.approx(rates) and 9 <= len(log) == len(rates) < 60
    assert len(set(rates)) == 3


def test_a_last_batch_of_one_joins_the_one_before():
    sizes = [len(rows) for rows in trainer.batches(17, 8, torch.Generator().manual_seed(0))]
    assert sizes == [8, 9]
    assert [len(rows) for rows in trainer.batches(1, 8, torch.Generator().manual_seed(0))] == [1]


def test_progress_counts_images():
    seen = []
    train(progress=seen.append)
    assert sum(seen) == 4 * 20


def test_divergence_is_one_sentence():
    with pytest.raises(trainer.DivergedError, match="lower learning_rate"):
        train(dataclasses.replace(RECIPE, learning_rate=1e30, clip_norm=None))


def test_accuracy_does_not_depend_on_batches_or_order(monkeypatch):
    model, _ = train()
    images = two_classes(33, 3)
    whole = trainer.predict_classes(model.predict, images)
    for size in (1, 7):
        monkeypatch.setattr(memory, "ON_CPU", size)
        assert torch.equal(trainer.predict_classes(model.predict, images), whole)
    order = torch.randperm(33)
    assert torch.equal(trainer.predict_classes(model.predict, images.subset(order)), whole[order])
