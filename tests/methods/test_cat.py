"""CAT: similarity, open masks, gradient factors, the two heads, resume."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from par.methods.bases.method import LearningTask, Step
from par.networks.attention import TransferAttention
from par.schema import ConfigError
from par.training import trainer
from tests.methods.tasks import RECIPE, images, learner, step, task, through_a_file
from tests.methods.test_hat import saturate, slow_factors, with_gradients

SHORT = dataclasses.replace(RECIPE, epochs=2)
SMALL = {"width": 20}


def remembering(task_id: int, recipe=SHORT, **accuracies: float) -> Step:
    """A step in whose store the similarity's accuracies already lie (``reference``, ``task_0`` ...)."""
    known = {f"similarity/{name.removeprefix('task_')}": value for name, value in accuracies.items()}
    return Step(recipe, f"test/{task_id}", remember=lambda part, compute: known[part])


def choosing(monkeypatch, mask: float, attention: float):
    """A learner whose third task has the first two as similar ones, and heads with these validation accuracies."""
    in_training = 3 * SHORT.epochs
    outcomes = iter([0.5] * in_training + [mask, attention])
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "accuracy", lambda predict, split: next(outcomes))
        model = learner("cat", **SMALL)
        model.learn(task(0), step(0, SHORT))
        model.learn(task(1), remembering(1, reference=0.5, task_0=0.4))
        model.learn(task(2), remembering(2, reference=0.5, task_0=0.6, task_1=0.7))
    assert next(outcomes, None) is None
    return model


def test_a_task_is_similar_iff_its_readout_beats_the_reference():
    model = learner("cat", **SMALL)
    for number in range(4):
        model.grow(model.record(task(number)))
    given = remembering(4, reference=0.5, task_0=0.51, task_1=0.5, task_2=0.49, task_3=1.0)
    assert model.similar_tasks(task(4), given) == [0, 3]


@pytest.mark.parametrize(("readout", "epochs"), [("logits", 20), ("features", 6)])
def test_similarity_is_found_on_images(readout, epochs):
    """A task is easier to read out of the network of a task with the same classes than out of another's."""
    model = learner("cat", width=60, readout=readout, similarity_epochs=epochs)
    for number in (0, 1):
        model.learn(task(number), step(number, dataclasses.replace(RECIPE, epochs=6)))
    again = LearningTask(2, 3, images(0, "train", per_class=2), images(0, "valid", per_class=40))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    accuracies = {}

    def remember(part, compute):
        accuracies[part] = compute()
        return accuracies[part]

    recipe = dataclasses.replace(RECIPE, batch_size=2)
    model.similar_tasks(again, Step(recipe, "test/2", remember=remember))
    assert accuracies.keys() == {"similarity/reference", "similarity/0", "similarity/1"}
    assert accuracies["similarity/0"] > accuracies["similarity/1"] + 0.1
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_similarity_has_epochs_of_its_own_and_does_not_depend_on_the_store():
    model = learner("cat", **SMALL, similarity_epochs=1)
    model.learn(task(0), step(0, SHORT))
    other = learner("cat", **SMALL, similarity_epochs=1)
    other.restore(model.save())
    n_images, known = [], {}

    def keep(part, compute):
        known[part] = compute()
        return known[part]

    one = dataclasses.replace(step(1, SHORT), progress=n_images.append, remember=keep)
    model.learn(task(1), one)
    assert sum(n_images) == len(task(1).train) * (1 + 1 + SHORT.epochs)
    other.learn(task(1), dataclasses.replace(one, remember=lambda part, compute: known[part]))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def hand_made():
    """Three learned tasks with masks of 6 units in both layers: 0 has units 0-2, 1 has 2-4, 2 has 0 and 5."""
    model = learner("cat", width=6, n_heads=2)
    for number, units in enumerate(([0, 1, 2], [2, 3, 4], [0, 5])):
        model.grow(model.record(task(number)))
        with torch.no_grad():
            for embedding in model.embeddings[str(number)]:
                embedding.fill_(-6)
                embedding[units] = 6
    return model


@pytest.mark.parametrize(
    ("similar", "expected"),
    [
        ([], [0, 0, 0, 0, 0, 0]),
        ([0], [1, 1, 1, 0, 0, 0]),  # unit 2 belongs to task 0, which claimed it first
        ([1], [0, 0, 0, 1, 1, 0]),
        ([1, 2], [0, 0, 0, 1, 1, 1]),
        ([0, 1, 2], [1, 1, 1, 1, 1, 1]),
    ],
)
def test_units_open_to_a_task(similar, expected):
    units = hand_made().open_units(similar)
    assert [unit.tolist() for unit in units] == [expected] * 2


def test_softly_claimed_units_stay_open():
    model = learner("cat", width=6, n_heads=2)
    model.grow(model.record(task(0)))
    with torch.no_grad():
        for embedding in model.embeddings["0"]:
            embedding.copy_(torch.tensor([0.4, 0.49, 0.51, 0.6, 1e-9, 1 - 1e-7]).logit() / 400)
    assert model.open_units([])[0].tolist() == [1, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("similar", [[], [1], [0, 2]])
def test_gradient_factors_are_those_of_a_loop_over_weights(similar):
    model = hand_made()
    model._similar = similar
    plain = with_gradients(model, 3)
    model.after_backward()
    claimed = {0: {0, 1, 2}, 1: {3, 4}, 2: {5}}
    cumulative = torch.ones(6)
    units = torch.tensor([float(not any(u in claimed[j] for j in claimed if j not in similar)) for u in range(6)])
    for number, layer in enumerate(model.trunk.layers):
        source = (cumulative, units) if number else (None, None)
        masked = slow_factors(layer.weight.detach(), source[0], cumulative)
        opened = 1 - slow_factors(layer.weight.detach(), source[1], units)
        factor = torch.maximum(masked, opened)
        assert torch.allclose(layer.weight.grad, plain[f"trunk.layers.{number}.weight"] * factor)
        assert torch.allclose(layer.bias.grad, plain[f"trunk.layers.{number}.bias"] * units)
    assert (factor == 1).any() == bool(similar)


def test_without_similar_tasks_saturated_masks_forget_nothing():
    model = learner("cat", **SMALL)
    model.learn(task(0), step(0, SHORT))
    saturate(model, 0)
    pixels = task(0).valid.batch(torch.arange(48))
    before, weight = model.logits(pixels, 0), model.trunk.layers[1].weight.clone()
    model.learn(task(1), remembering(1, reference=1.0, task_0=0.0))
    assert (model.trunk.layers[1].weight - weight).abs().max() > 1e-2
    assert torch.allclose(model.logits(pixels, 0), before, atol=1e-5, rtol=0)


def test_similar_tasks_units_do_change():
    model = learner("cat", **SMALL)
    model.learn(task(0), step(0, SHORT))
    saturate(model, 0)
    before = model.features(task(0).valid.batch(torch.arange(48)), 0)
    model.learn(task(1), remembering(1, reference=0.0, task_0=1.0))
    assert model.tasks[1]["similar"] == [0] and model.tasks[1]["path"] == "mask"
    assert (model.features(task(0).valid.batch(torch.arange(48)), 0) - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("attention", "mask", "chosen"), [(0.9, 0.8, "attention"), (0.8, 0.8, "mask"), (0.1, 0.8, "mask")]
)
def test_the_better_head_on_validation_images_is_chosen_for_good(monkeypatch, attention, mask, chosen):
    model = choosing(monkeypatch, mask, attention)
    assert [record["path"] for record in model.tasks] == ["mask", "mask", chosen]
    pixels = task(2).valid.batch(torch.arange(12))
    model.eval()
    if chosen == "attention":
        assert torch.equal(model.logits(pixels, 2), model.attention_logits(pixels, 2))
        assert sum(p.numel() for p in model.attentions.parameters()) == 20 + 3 * 40 + 4 * 400 + 2 * 420
    else:
        expected = model.heads(model.features(pixels, 2), 2)
        assert torch.equal(model.logits(pixels, 2), expected)
        assert not list(model.attentions.parameters()) and not list(model.attention_heads.parameters())


def test_attention_reads_similar_tasks_and_is_trained():
    model = learner("cat", **SMALL)
    for number in range(3):
        model.grow(model.record(task(number)))
    model._similar = [0, 2]
    plain = with_gradients(model, 3)
    assert all(plain[name].abs().sum() > 0 for name in plain if name.startswith(("attentions", "attention_heads")))
    assert sum(name.startswith("attentions.3") for name in plain) == 13
    model.eval()
    pixels = task(3).valid.batch(torch.arange(12))
    tokens = torch.stack([model.features(pixels, 0), model.features(pixels, 2)], dim=1)
    expected = model.attention_heads[3](model.attentions["3"](tokens))
    assert torch.allclose(model.attention_logits(pixels, 3), expected)
    logits = model.logits(pixels, 3)
    assert torch.allclose(
        logits, (torch.log_softmax(expected, 1) + torch.log_softmax(model.heads(model.features(pixels, 3), 3), 1)) / 2
    )


def test_answers_depend_on_the_image_alone(monkeypatch):
    model = choosing(monkeypatch, 0.1, 0.9)
    assert model.tasks[2]["path"] == "attention" and not model.training
    pixels = task(2).valid.batch(torch.arange(14))
    together = model.logits(pixels, 2)
    for size in (1, 7):
        assert torch.allclose(torch.cat([model.logits(part, 2) for part in pixels.split(size)]), together, atol=1e-5)


@pytest.mark.parametrize("path", ["attention", "mask"])
def test_resuming_gives_the_same_bits(monkeypatch, path):
    model = choosing(monkeypatch, *{"mask": (0.9, 0.1), "attention": (0.1, 0.9)}[path])
    assert model.tasks[2]["path"] == path
    saved = through_a_file(model.save())
    accuracies = {"reference": 0.5, "task_0": 0.6, "task_1": 0.1, "task_2": 0.9}
    model.learn(task(3), remembering(3, **accuracies))
    resumed = learner("cat", **SMALL)
    resumed.restore(saved)
    torch.manual_seed(99)
    resumed.learn(task(3), remembering(3, **accuracies))
    one, two = model.save(), resumed.save()
    assert one["tasks"] == two["tasks"] and one["tensors"].keys() == two["tensors"].keys()
    assert all(torch.equal(value, two["tensors"][name]) for name, value in one["tensors"].items())


def test_it_learns():
    model = learner("cat", width=60)
    model.learn(task(0), step(0))
    model.learn(task(1), step(1))
    accuracies = [trainer.accuracy(lambda pixels, j=j: model.logits(pixels, j), task(j).valid) for j in (0, 1)]
    assert min(accuracies) > 0.6


def test_sizes():
    with torch.device("meta"):
        model = learner("cat")
        model.device = torch.device("meta")
        for number in range(2):
            model.grow({"task": number, "n_classes": 10, "image_size": [32, 32], "similar": [], "path": "mask"})
        assert model.n_params() == 10_148_000 + 2 * (4000 + 20_010)
        model.grow({"task": 2, "n_classes": 10, "image_size": [32, 32], "similar": [0, 1], "path": "attention"})
        assert model.n_params() == 10_148_000 + 3 * (4000 + 20_010) + 24_018_000 + 20_010


def test_heads_of_the_attention_must_divide_its_width():
    with pytest.raises(ConfigError, match="methods.cat.n_heads = 5 does not divide width = 12"):
        learner("cat", width=12)


@pytest.mark.parametrize("size", [28, 64, 84])
def test_any_image_size_is_learned(size):
    model = learner("cat", **SMALL)
    model.learn(task(0, size=size, per_class=4), step(0, dataclasses.replace(SHORT, epochs=1)))
    assert model.logits(torch.zeros(2, 3, size, size), 0).shape == (2, 3)


def test_attention_is_that_of_its_formula():
    torch.manual_seed(0)
    attention = TransferAttention(6, 2).eval()
    tokens = torch.randn(4, 3, 6)
    query = attention.query.detach().clamp(min=0)

    def norm(number, values):
        values = values - values.mean(dim=-1, keepdim=True)
        own = attention.norms[number]
        return values / (values.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * own.weight + own.bias

    of_query, of_keys, of_values = attention.attention.in_proj_weight.chunk(3)
    projected, keys, values = of_query @ norm(0, query), tokens @ of_keys.T, tokens @ of_values.T
    attended = []
    for units in (slice(0, 3), slice(3, 6)):
        weights = (keys[:, :, units] @ projected[units] / 3**0.5).softmax(dim=1)
        attended.append((weights[:, :, None] * values[:, :, units]).sum(dim=1))
    features = query + torch.cat(attended, dim=1) @ attention.attention.out_proj.weight.T
    features = features + attention.output(attention.hidden(norm(1, features)).relu())
    assert torch.allclose(attention(tokens), norm(2, features), atol=1e-5)
    assert (attention.query < 0).any() and (attention.query > 0).any()


def test_the_reference_reads_logits_of_a_network_under_random_masks():
    model = learner("cat", **SMALL)
    probe = model._reference(task(0))
    trunk, head = probe.trained
    assert head.out_features == probe.heads.n_features == 3
    pixels = task(0).valid.batch(torch.arange(5))
    probe.eval()
    plain = head(trunk(pixels))
    with torch.no_grad():
        for layer in (*trunk.layers, head):
            layer.bias.zero_()
        assert not torch.allclose(probe.features(pixels), plain)
        trunk.layers[1].weight.copy_(torch.eye(20))
        head.weight.copy_(torch.eye(20)[:3])
        shares = probe.features(pixels) / trunk.layers[0](pixels.flatten(1)).relu()[:, :3]
    known = shares.isfinite().all(dim=1)
    assert known.any() and ((shares[known] > 0) & (shares[known] < 1)).all()
