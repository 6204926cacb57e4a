"""HAT: gradients against loops, annealing, what saturated masks protect, resume."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from par.config import NetworkSettings, Recipe
from par.methods import hat
from par.methods.bases.method import Step
from par.schema import ConfigError
from par.training import trainer
from tests.methods.tasks import CONFIG, RECIPE, learner, step, straight_and_resumed, task

NETWORKS = {"alexnet": {"width": 0.06}, "resnet": {"network": "resnet"}}
SHORT = dataclasses.replace(RECIPE, epochs=2)


def saturate(model, task_id: int) -> None:
    """Embeddings of the task at their limits, so that its masks are 0 and 1."""
    with torch.no_grad():
        for embedding in model.embeddings[str(task_id)]:
            embedding.copy_(6 * torch.where(embedding >= 0, 1.0, -1.0))


def slow_factors(weight, source, target):
    """1 - min(A_l,i, A_{l-1},k) for each weight, one by one; a flattened map gives each unit several inputs."""
    factor = torch.ones_like(weight)
    for i in range(weight.shape[0]):
        for k in range(weight.shape[1]):
            unit = 1.0 if source is None else float(source[k // (weight.shape[1] // len(source))])
            factor[i, k] = 1 - min(float(target[i]), unit)
    return factor


def with_gradients(model, task_id: int, rows=8):
    """Begin a task and run one batch backward; returns the gradients before the hook."""
    model.current = task(task_id)
    model.start_task(model.current, step(task_id, RECIPE))
    model._n_batches, model._weight_decay = 5, 0.0
    nn.ModuleList(model.modules_to_train()).requires_grad_(True)
    model.start_epoch(0)
    drawn = model.draw([8] * 5)[2]
    train, rows = model.current.train, torch.arange(rows)
    model.loss(trainer.Batch(train.batch(rows), train.labels[rows], rows, drawn)).backward()
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize(
    ("network", "chain"),
    [
        ("alexnet", {f"layers.{i}": (i - 1 if i else None, i) for i in range(5)}),
        (
            "resnet",
            {
                "stem.0": (None, 0),
                "stages.0.0.conv1": (0, 1),
                "stages.0.0.conv2": (1, 2),
                "stages.1.0.conv1": (2, 3),
                "stages.1.0.shortcut.0": (2, 4),
                "stages.3.0.conv2": (7, 8),
            },
        ),
    ],
)
def test_the_gradient_mask_is_that_of_a_loop_over_weights(network, chain):
    model = learner("hat", **NETWORKS[network])
    model.grow(model.record(task(0)))
    model.grow(model.record(task(5)))
    with torch.no_grad():  # soft masks too: s e in -3..3
        for embedding in [*model.embeddings["0"], *model.embeddings["5"]]:
            embedding.uniform_(-3 / 400, 3 / 400)
    plain = with_gradients(model, 1)
    model.after_backward()
    masks = [[torch.sigmoid(400 * e.detach()) for e in model.embeddings[t]] for t in ("0", "5")]
    cumulative = [torch.maximum(one, two) for one, two in zip(*masks, strict=True)]
    for name, (source, target) in chain.items():
        layer = model.trunk.get_submodule(name)
        factor = slow_factors(layer.weight.detach(), None if source is None else cumulative[source], cumulative[target])
        assert 0.1 < factor.mean() < 0.9
        assert torch.allclose(layer.weight.grad, plain[f"trunk.{name}.weight"] * factor, rtol=1e-5, atol=1e-9)
        if layer.bias is not None:
            expected = plain[f"trunk.{name}.bias"] * (1 - cumulative[target])
            assert torch.allclose(layer.bias.grad, expected, rtol=1e-5, atol=1e-9)
    assert torch.equal(model.heads[1].weight.grad, plain["heads.by_task.1.weight"])


def test_the_first_task_is_free():
    model = learner("hat", width=0.06)
    plain = with_gradients(model, 0)
    model.after_backward()
    weights = [name for name in plain if name.startswith("trunk")]
    assert weights and all(torch.equal(model.get_parameter(name).grad, plain[name]) for name in weights)


def test_embedding_gradients_are_compensated():
    model = learner("hat", width=0.06)
    plain = with_gradients(model, 0)
    scale = 1 / 400 + (400 - 1 / 400) * 2 / 4  # third batch of five
    assert float(model._drawn["scale"]) == pytest.approx(scale)
    model.after_backward()
    for layer, embedding in enumerate(model.embeddings["0"]):
        for unit, value in enumerate(embedding.tolist()):
            exponent = max(-50.0, min(50.0, scale * value))
            factor = 400 / scale * (math.cosh(exponent) + 1) / (math.cosh(value) + 1)
            expected = float(plain[f"embeddings.0.{layer}"][unit]) * factor
            assert float(embedding.grad[unit]) == pytest.approx(expected, rel=1e-3, abs=1e-30)


def test_compensation_makes_the_gradient_that_of_s_one_times_s_max():
    embedding = torch.linspace(-1, 1, 11, dtype=torch.float64).requires_grad_()
    slopes = [torch.autograd.grad(torch.sigmoid(s * embedding).sum(), embedding)[0] for s in (1.0, 8.0)]
    assert torch.allclose(slopes[1] * hat.compensation(embedding.detach(), 8.0, 400.0 / 8.0), 400 * slopes[0])


def test_validation_loss_is_the_loss_at_s_max():
    model = learner("hat", width=0.06, sparsity=0.5)
    model.learn(task(0), step(0, SHORT))
    model.current = task(1)
    model.start_task(model.current, step(1, SHORT))
    rows, valid = torch.arange(9), model.current.valid
    batch = trainer.Batch(valid.batch(rows), valid.labels[rows], rows)
    masks, earlier = ([torch.sigmoid(400 * e) for e in model.embeddings[number]] for number in ("1", "0"))
    used = sum(float((mask * (1 - other)).detach().sum()) for mask, other in zip(masks, earlier, strict=True))
    free = sum(float((1 - other).detach().sum()) for other in earlier)
    plain = nn.functional.cross_entropy(model.predict(batch.images), batch.labels).detach()
    expected = float(plain) + 0.5 * used / free
    assert float(model.validation_loss(batch).detach()) == pytest.approx(expected, rel=1e-5)


def test_the_regulariser_on_hand_numbers():
    masks = [torch.tensor([1.0, 0.5]), torch.tensor([0.2, 0.4, 1.0])]
    none = [torch.zeros(2), torch.zeros(3)]
    assert float(hat.sparsity(masks, none)) == pytest.approx(3.1 / 5)
    some = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0, 0.5])]
    assert float(hat.sparsity(masks, some)) == pytest.approx((0.5 + 0.2 + 0.5) / 2.5)
    full = [torch.ones(2), torch.ones(3)]
    assert float(hat.sparsity(masks, full)) == 0.0


def scales(annealing: str, n_images: int, epochs: int = 1) -> list[float]:
    """s of every batch of 8 images."""
    model, seen = learner("hat", width=0.06, annealing=annealing), []
    original = model.scale
    model.scale = lambda n_seen: seen.append(original(n_seen)) or seen[-1]
    split = task(0).train.subset(torch.arange(n_images))
    recipe = dataclasses.replace(RECIPE, epochs=epochs)
    model.learn(dataclasses.replace(task(0), train=split), step(0, recipe))
    return seen


def test_annealing():
    low, rise = 1 / 400, 400 - 1 / 400
    assert scales("paper", 40) == pytest.approx([low + rise * b / 4 for b in range(5)])
    assert scales("paper", 33, epochs=2) == pytest.approx([low + rise * b / 3 for b in range(4)] * 2)  # 8 + 8 + 8 + 9
    assert scales("code", 36) == pytest.approx([low + rise * i / 36 for i in (0, 8, 16, 24, 32)])
    assert scales("paper", 6, epochs=4) == pytest.approx([low + rise * e / 4 for e in (1, 2, 3, 4)])
    assert scales("code", 6, epochs=2) == pytest.approx([low] * 2)


@pytest.mark.parametrize("network", NETWORKS)
def test_saturated_masks_forget_nothing_whatever_momentum_and_decay(network):
    model = learner("hat", dataclasses.replace(CONFIG, network=NetworkSettings(width=16)), **NETWORKS[network])
    model.learn(task(0), step(0, SHORT))
    saturate(model, 0)
    layers = [connection.layer for connection in model.gates.connections]
    if network == "alexnet":  # two epochs leave it nearly constant
        for layer in layers:
            layer.weight.mul_(3)
    images = task(0).valid.batch(torch.arange(48))
    before = model.logits(images, 0)
    weights = [layer.weight.clone() for layer in layers]
    recipe = dataclasses.replace(SHORT, momentum=0.9, weight_decay=0.1)
    model.learn(task(1), step(1, recipe))
    saturate(model, 1)
    model.learn(task(2), step(2, recipe))
    changes = [float((layer.weight - old).abs().max()) for layer, old in zip(layers, weights, strict=True)]
    assert min(changes) > 1e-3, "the later tasks must have changed every layer"
    assert before.std(dim=0).max() > 1e-2, "the logits must depend on the images"
    assert torch.allclose(model.logits(images, 0), before, atol=1e-5, rtol=0)


def test_embeddings_are_clamped_after_the_last_step_too():
    model = learner("hat", width=0.06)
    model.learn(task(0), step(0, dataclasses.replace(SHORT, learning_rate=5.0)))
    extremes = torch.cat(list(model.embeddings["0"])).abs()
    assert extremes.max() == 6.0


def test_it_learns_and_keeps_what_it_learned():
    config = dataclasses.replace(CONFIG, network=NetworkSettings(width=16))
    model = learner("hat", config, network="resnet", s_max=50.0, sparsity=0.1)
    recipe = dataclasses.replace(RECIPE, epochs=16)
    tasks = [task(number) for number in range(2)]
    for number, one in enumerate(tasks):
        model.learn(one, step(number, recipe))
    accuracies = [
        trainer.accuracy(lambda images, j=j: model.logits(images, j), one.valid) for j, one in enumerate(tasks)
    ]
    assert min(accuracies) > 0.6


@pytest.mark.parametrize("network", NETWORKS)
def test_resuming_gives_the_same_bits(network):
    one, two = straight_and_resumed("hat", SHORT, **NETWORKS[network])
    assert one["tasks"] == two["tasks"] and one["tensors"].keys() == two["tensors"].keys()
    assert all(torch.equal(value, two["tensors"][name]) for name, value in one["tensors"].items())


def test_dropout_neither_uses_nor_moves_the_global_generator():
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = torch.rand(3)
        torch.manual_seed(seed)
        model = learner("hat", width=0.06)
        model.learn(task(0), step(0, SHORT))
        assert torch.equal(torch.rand(3), expected)
        results.append(model.trunk.layers[3].weight)
    assert torch.equal(*results)


def test_sizes():
    model = learner("hat")
    for number in range(10):
        model.grow({"task": number, "n_classes": 10, "image_size": [32, 32]})
    assert model.n_params() == 6_503_872 + 45_440 + 204_900
    assert model.n_state() == 0


def test_clipping_is_the_methods_own():
    recipes = []

    class Recorder(Step):
        def fit(self, *arguments, **options):
            recipes.append(self.recipe)
            return super().fit(*arguments, **options)

    learner("hat", width=0.06).learn(task(0), Recorder(dataclasses.replace(SHORT, clip_norm=10.0, momentum=0.5), "k"))
    assert (recipes[0].clip_norm, recipes[0].weight_decay, recipes[0].momentum) == (10000.0, 0.0, 0.5)


def test_adam_is_refused():
    with pytest.raises(ConfigError, match="methods.hat.recipe.optimizer"):
        learner("hat", width=0.06).learn(task(0), step(0, Recipe(epochs=1, optimizer="adam")))


@pytest.mark.parametrize("size", [28, 64, 84])
def test_any_image_size_is_learned(size):
    model = learner("hat", width=0.06)
    model.learn(task(0, size=size, per_class=4), step(0, dataclasses.replace(SHORT, epochs=1)))
    assert model.logits(torch.zeros(2, 3, size, size), 0).shape == (2, 3)
