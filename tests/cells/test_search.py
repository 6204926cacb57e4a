from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from par.cells import search
from par.cells.genotype import DARTS_V1, EDGES, KINDS, OPERATIONS, from_json
from par.cells.search import Advantage, Mdl, best_genotype, sample, search_cell
from par.config import ExpertSettings, Recipe, SearchSettings
from par.training import trainer
from par.training.images import Images

RUNS = 60  # of the simulation


# The updates, on simulated accuracies


def slow_mdl(choices: np.ndarray, accuracies: list[float], step: float) -> np.ndarray:
    """The released update (sources.md#par-search) in loops."""
    p = [[[1 / 6] * 6 for _ in range(14)] for _ in range(2)]
    count = [[[0] * 6 for _ in range(14)] for _ in range(2)]
    latest = [[[0.0] * 6 for _ in range(14)] for _ in range(2)]
    for choice, accuracy in zip(choices, accuracies):
        for kind in range(2):
            for edge in range(14):
                operation = choice[kind][edge]
                count[kind][edge][operation] += 1
                latest[kind][edge][operation] = accuracy
                n, a, old = count[kind][edge], latest[kind][edge], p[kind][edge]
                moved = []
                for i in range(6):
                    v1 = sum(n[i] < n[j] and a[i] > a[j] for j in range(6))
                    v2 = sum(n[i] > n[j] and a[i] < a[j] for j in range(6))
                    moved.append(old[i] + step * (v1 - v2))
                total = sum(np.exp(value) for value in moved)
                p[kind][edge] = [np.exp(value) / total for value in moved]
    return np.array(p)


def random_course(seed: int, epochs: int = 30) -> tuple[np.ndarray, list[float]]:
    generator = np.random.default_rng(seed)
    choices = generator.integers(6, size=(epochs, 2, 14))
    return choices, (generator.integers(1, 20, size=epochs) / 20).tolist()  # coarse, so that there are ties


@pytest.mark.parametrize("seed", range(3))
def test_mdl_equals_the_released_update_in_loops(seed):
    choices, accuracies = random_course(seed)
    update = Mdl(step=0.01)
    for choice, accuracy in zip(choices, accuracies):
        update.update(choice, accuracy)
    expected = slow_mdl(choices, accuracies, 0.01)
    np.testing.assert_allclose(update.probabilities(), expected, rtol=1e-12)
    assert expected.std() > 1e-4
    assert update.genotype() == best_genotype(expected)


def test_mdl_stays_near_uniform():
    """The softmax after every epoch keeps probabilities within [.157, .177] (sources.md#par-search)."""
    update = Mdl(step=0.01)
    for choice, accuracy in zip(*random_course(0, epochs=200)):
        update.update(choice, accuracy)
        assert 0.15 < update.probabilities().min() and update.probabilities().max() < 0.185


@pytest.mark.parametrize("seed", range(3))
def test_advantage_is_the_mean_difference_from_a_moving_average(seed):
    choices, accuracies = random_course(seed)
    update = Advantage(exploration=0.1)
    differences, average = [], accuracies[0]
    for choice, accuracy in zip(choices, accuracies):
        update.update(choice, accuracy)
        differences.append(accuracy - average)
        average = 0.7 * average + 0.3 * accuracy
    temperature = np.sqrt(np.mean(np.square(differences)))
    for kind in range(2):
        for edge in range(14):
            values = []
            for operation in range(6):
                drawn = [d for d, choice in zip(differences, choices) if choice[kind, edge] == operation]
                values.append(np.mean(drawn) if drawn else 0.0)
            np.testing.assert_allclose(update.values()[kind, edge], values, atol=1e-14)
            weights = np.exp(np.array(values) / temperature)
            expected = 0.9 * weights / weights.sum() + 0.1 / 6
            np.testing.assert_allclose(update.probabilities()[kind, edge], expected, rtol=1e-10)


def test_advantage_draws_do_not_depend_on_the_scale_of_accuracies():
    choices, accuracies = random_course(0)
    plain, scaled = Advantage(0.1), Advantage(0.1)
    for choice, accuracy in zip(choices, accuracies):
        plain.update(choice, accuracy)
        scaled.update(choice, 0.01 * accuracy)
    np.testing.assert_allclose(plain.probabilities(), scaled.probabilities(), rtol=1e-9)


@pytest.mark.parametrize("update", [Mdl(0.01), Advantage(0.1), Advantage(0.0)])
def test_constant_accuracy_favours_nothing_unduly(update):
    for choice, _ in zip(*random_course(0)):
        update.update(choice, 0.5)
    probabilities = update.probabilities()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1)
    if isinstance(update, Advantage):
        np.testing.assert_allclose(probabilities, 1 / 6)


def test_sample_follows_the_probabilities():
    probabilities = np.broadcast_to([0.0, 0.5, 0.0, 0.2, 0.3, 0.0], (2000, 6))
    drawn = sample(probabilities, np.random.default_rng(0))
    assert drawn.shape == (2000,)
    shares = np.bincount(drawn, minlength=6) / 2000
    assert shares[[0, 2, 5]].sum() == 0
    np.testing.assert_allclose(shares, probabilities[0], atol=0.03)


def simulate(make_update, seed: int, epochs: int = 100) -> bool:
    """Whether the update finds the planted operation: edge 0 of 14 has one worth 0.05, all other edges' operations are
    worth normal(0, 0.02), accuracy rises over the epochs and has noise of 0.02 (sources.md#search-simulation)."""
    generator = np.random.default_rng(seed)
    worth = generator.normal(0, 0.02, size=(14, 6))
    good = generator.integers(1, 6)
    worth[0] = 0
    worth[0, good] = 0.05
    update = make_update()
    for epoch in range(epochs):
        choice = sample(update.probabilities(), generator)
        curve = 0.3 + 0.4 * (1 - np.exp(-4 * epoch / epochs))
        effects = worth[np.arange(14), choice[0]].sum()
        update.update(choice, curve + effects + generator.normal(0, 0.02))
    found = [operation for operation, predecessor in update.genotype().normal[0] if predecessor == 0]
    return found == [OPERATIONS[good]]  # edge 0 is in every genotype: node 0 has but two edges


def test_advantage_finds_a_planted_operation():
    shares = {
        name: np.mean([simulate(make, seed) for seed in range(RUNS)])
        for name, make in {"advantage": lambda: Advantage(0.1), "mdl": lambda: Mdl(0.01)}.items()
    }
    print(f"\nplanted operation found in: {shares['advantage']:.0%} advantage, {shares['mdl']:.0%} mdl, 20% chance")
    assert shares["advantage"] >= 0.8
    assert shares["advantage"] > shares["mdl"] + 0.2


# The genotype of values


def test_best_genotype_leaves_out_none_and_keeps_the_two_best_edges():
    values = np.zeros((2, 14, 6))
    values[..., 0] = 9  # "none" is worth most everywhere and plays no part
    edge = {pair: index for index, pair in enumerate(EDGES)}
    values[0, edge[0, 0], 4], values[0, edge[0, 1], 1] = 0.5, 0.1
    values[0, edge[3, 1], 3], values[0, edge[3, 4], 5], values[0, edge[3, 0], 2] = 0.3, 0.9, 0.2
    genotype = best_genotype(values)
    assert genotype.normal[0] == (("sep_conv_3x3", 0), ("max_pool_3x3", 1))
    assert genotype.normal[3] == (("skip_connect", 1), ("dil_conv_3x3", 4))


def test_ties_go_to_the_first_operation_and_the_earlier_predecessors():
    genotype = best_genotype(np.zeros((2, 14, 6)))
    first = (("max_pool_3x3", 0), ("max_pool_3x3", 1))
    assert genotype.normal == genotype.reduce == (first,) * 4


# The search itself, on a tiny problem

EXPERT = ExpertSettings(cells=3, channels=4)
RECIPE = Recipe(epochs=1, batch_size=16)


def tiny_images(n: int = 41) -> Images:
    """Each image has a value of its own, so that it can be recognised."""
    labels = np.arange(n) % 2
    pixels = np.broadcast_to((np.arange(n) + 100 * labels)[:, None, None, None], (n, 3, 8, 8)).astype(np.uint8)
    return Images(pixels, labels, (0.4,) * 3, (0.2,) * 3, augment=("flip",))


def run(update: str = "advantage", key: str = "key", epochs: int = 4, progress=None) -> search.SearchResult:
    return search_cell(tiny_images(), 2, EXPERT, SearchSettings(update=update, epochs=epochs), RECIPE, key, progress)


def without_seconds(result: search.SearchResult) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]


@pytest.mark.parametrize("update", ["mdl", "advantage"])
def test_same_key_same_search_other_key_other_draws(update):
    first, second, other = run(update), run(update), run(update, key="other")
    assert first.genotype == second.genotype
    assert without_seconds(first) == without_seconds(second)
    assert [row["normal"] for row in first.history] != [row["normal"] for row in other.history]


def test_search_leaves_the_global_random_states_alone():
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(1), np.random.random()
    torch.manual_seed(3)
    np.random.seed(3)
    run(epochs=1)
    assert (torch.rand(1), np.random.random()) == expected


def test_history():
    seen = []
    result = run(epochs=4, progress=seen.append)
    assert [row["epoch"] for row in result.history] == [0, 1, 2, 3]
    assert sum(seen) == 4 * 20  # half of 41 images train
    first = result.history[0]
    assert set(first) == {
        *("epoch", "loss", "accuracy", "learning_rate", "seconds"),
        *("normal", "reduce", "largest_probability", "entropy"),
    }
    for row in result.history:
        for kind in KINDS:
            assert len(row[kind].split()) == 14 and set(row[kind].split()) <= set(OPERATIONS)
        assert 0 <= row["accuracy"] <= 1 and row["seconds"] > 0
    assert first["largest_probability"] == pytest.approx(1 / 6) and first["entropy"] == pytest.approx(np.log(6))
    assert result.history[-1]["entropy"] < first["entropy"]
    json.dumps([result.genotype.to_json(), result.history], allow_nan=False)
    assert from_json(result.genotype.to_json()) == result.genotype


def test_the_update_sees_what_the_history_says(monkeypatch):
    updates = []

    class Recorder(Advantage):
        def update(self, choice, accuracy):
            updates.append((choice, accuracy))
            super().update(choice, accuracy)

    monkeypatch.setattr(search, "Advantage", Recorder)
    result = run(epochs=3)
    assert len(updates) == 3
    for row, (choice, accuracy) in zip(result.history, updates):
        assert row["accuracy"] == accuracy
        for kind, operations in zip(KINDS, choice):
            assert row[kind].split() == [OPERATIONS[operation] for operation in operations]


def test_halves_are_disjoint_and_of_the_training_data(monkeypatch):
    """One call of the only training loop, on two halves that make up the training images and nothing else."""
    calls = []
    fit = trainer.fit

    def recording_fit(model, train, valid, recipe, key, **options):
        calls.append((train, valid, recipe, options))
        return fit(model, train, valid, recipe, key, **options)

    monkeypatch.setattr(trainer, "fit", recording_fit)
    run(epochs=2)
    run(epochs=2, key="other")
    halves = []
    for train, valid, recipe, options in calls:
        assert (recipe.epochs, recipe.schedule, recipe.clip_norm, recipe.batch_size) == (2, "cosine", 5.0, 16)
        assert recipe.min_learning_rate == 1e-5 and not options["keep_best"]
        values = [images.pixels[:, 0, 0, 0].tolist() for images in (train, valid)]
        assert len(values[0]) == 20 and len(values[1]) == 21
        assert sorted(values[0] + values[1]) == sorted(tiny_images().pixels[:, 0, 0, 0].tolist())
        assert all((value >= 100) == bool(label) for value, label in zip(values[0], train.labels.tolist()))
        halves.append(set(values[0]))
    assert len(calls) == 2 and halves[0] != halves[1]


def test_accuracy_is_measured_without_augmentation(monkeypatch):
    augmented = []
    made = Images.augmented

    def recording(self, rows, drawn):
        augmented.append((len(self), bool(drawn)))
        return made(self, rows, drawn)

    monkeypatch.setattr(Images, "augmented", recording)
    run(epochs=1)
    assert {(20, True), (21, False)} == set(augmented)


def test_controls_train_nothing(monkeypatch):
    monkeypatch.setattr(trainer, "fit", lambda *arguments, **options: pytest.fail("trained"))
    assert run("fixed") == search.SearchResult(DARTS_V1, [])
    drawn = [run("random", key).genotype for key in ("key", "key", "other")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert run("random").history == []


def test_search_learns():
    """The accuracy on the other half of a problem that one pixel decides rises well above chance."""
    result = search_cell(
        tiny_images(100), 2, EXPERT, SearchSettings(update="advantage", epochs=8, learning_rate=0.05), RECIPE, "key"
    )
    assert max(row["accuracy"] for row in result.history) > 0.8
