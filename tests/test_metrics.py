"""Metrics on hand numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from par import metrics
from par.seeding import numpy_generator

NAN = float("nan")
# Task 1 first improves (.80 -> .90), then is forgotten; task 2 loses a little; task 3 is the last.
MATRIX = np.array([[0.80, NAN, NAN], [0.90, 0.70, NAN], [0.50, 0.60, 0.40]])
COSTS = dict(n_params=607_050, n_state=0, n_experts=1, n_cells_searched=0, epochs=6)


@pytest.mark.parametrize(
    "metric, by_hand",
    [
        (metrics.average_accuracy, (0.50 + 0.60 + 0.40) / 3),
        (metrics.average_forgetting, (-0.30 - 0.10 + 0) / 3),
        (metrics.backward_transfer, (-0.30 - 0.10) / 2),
        (metrics.forgetting_max, ((0.90 - 0.50) + (0.70 - 0.60)) / 2),
        (metrics.forgetting_avalanche, (0.30 + 0.10) / 2),
        (metrics.bwt_continuum, ((0.90 - 0.80) + (0.50 - 0.80) + (0.60 - 0.70)) / 3),
    ],
)
def test_definitions_on_one_matrix(metric, by_hand):
    before = MATRIX.copy()
    assert metric(MATRIX) == pytest.approx(by_hand, abs=1e-12)
    np.testing.assert_array_equal(MATRIX, before)


def test_the_five_forgetting_definitions_give_five_numbers():
    five = [
        metrics.average_forgetting(MATRIX),
        metrics.backward_transfer(MATRIX),
        metrics.forgetting_max(MATRIX),
        metrics.forgetting_avalanche(MATRIX),
        metrics.bwt_continuum(MATRIX),
    ]
    assert len({round(value, 9) for value in five}) == 5


def test_a_metric_that_needs_an_unknown_entry_is_unknown():
    ends = MATRIX.copy()
    ends[1, 0] = NAN
    assert metrics.average_forgetting(ends) == pytest.approx(-0.4 / 3)
    assert np.isnan(metrics.forgetting_max(ends)) and np.isnan(metrics.bwt_continuum(ends))


def test_one_task_has_no_backward_transfer():
    one = np.array([[0.7]])
    assert metrics.average_accuracy(one) == 0.7 and metrics.average_forgetting(one) == 0
    assert np.isnan(metrics.backward_transfer(one)) and np.isnan(metrics.forgetting_max(one))


def predict(labels: np.ndarray, n_correct: int) -> np.ndarray:
    """Predictions of which exactly the first ``n_correct`` are right."""
    predicted = (labels + 1) % 10
    predicted[:n_correct] = labels[:n_correct]
    return predicted.astype(np.uint8)


@pytest.fixture
def labels() -> list[np.ndarray]:
    return [np.arange(10), np.arange(10), np.arange(20) % 10]


def test_a_task_keeps_its_accuracy_while_its_chain_rests(labels):
    chains = [[0, 2], [1]]
    predictions = {
        "0/0": predict(labels[0], 8),
        "1/1": predict(labels[1], 7),
        "2/0": predict(labels[0], 5),
        "2/2": predict(labels[2], 19),
    }
    matrix = metrics.accuracy_matrix(predictions, labels, chains)
    np.testing.assert_allclose(matrix, [[0.8, NAN, NAN], [0.8, 0.7, NAN], [0.5, 0.7, 0.95]])


def test_an_old_prediction_is_not_carried_over_a_step_that_may_have_changed_it(labels):
    predictions = {f"{i}/{j}": predict(labels[j], 5) for i, j in [(0, 0), (1, 1), (2, 0), (2, 1), (2, 2)]}
    matrix = metrics.accuracy_matrix(predictions, labels, [[0, 1, 2]])
    assert np.isnan(matrix[1, 0]), "step 1 changed the learner and task 0 was not predicted after it"
    assert matrix[2, 0] == 0.5


def test_chains_must_hold_every_task_once(labels):
    for chains in ([[0, 1]], [[0, 1, 2], [1]]):
        with pytest.raises(ValueError, match="each of the 3 tasks once"):
            metrics.accuracy_matrix({}, labels, chains)


def test_predictions_of_another_test_set_are_refused(labels):
    with pytest.raises(ValueError, match=r"predictions 0/0 have shape \(9,\)"):
        metrics.accuracy_matrix({"0/0": np.zeros(9, np.uint8)}, labels, [[0, 1, 2]])


def test_interval_has_the_width_of_the_normal_approximation_and_is_repeatable():
    accuracies, n_test = np.array([0.5, 0.8]), np.array([400, 1000])
    low, high = metrics.ap_interval(accuracies, n_test, numpy_generator("bootstrap", "s", "par", 0))
    error = 1.96 * np.sqrt(0.5 * 0.5 / 400 + 0.8 * 0.2 / 1000) / 2
    assert (low + high) / 2 == pytest.approx(0.65, abs=0.002)
    assert (high - low) / 2 == pytest.approx(error, rel=0.05)
    assert (low, high) == metrics.ap_interval(accuracies, n_test, numpy_generator("bootstrap", "s", "par", 0))


def test_interval_equals_resampling_the_images():
    correct = [np.arange(30) < 21, np.arange(50) < 10]
    generator = np.random.default_rng(0)
    means = [generator.choice(hits, (20_000, len(hits))).mean(axis=1) for hits in correct]
    by_images = np.percentile(np.mean(means, axis=0), [2.5, 97.5])
    by_counts = metrics.ap_interval(np.array([0.7, 0.2]), np.array([30, 50]), np.random.default_rng(1), 20_000)
    np.testing.assert_allclose(by_counts, by_images, atol=0.006)


def test_interval_of_perfect_predictions_is_a_point():
    assert metrics.ap_interval(np.ones(3), np.full(3, 100), np.random.default_rng(0)) == (1.0, 1.0)


def test_evaluate_learner(labels):
    predictions = {f"{i}/{j}": predict(labels[j], 5) for i in range(3) for j in range(i + 1)}
    entry = metrics.evaluate_learner(predictions, labels, [[0, 1, 2]], COSTS, ("demo_minus", "finetune", 0))
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    assert entry["accuracy"] == [[0.5, None, None], [0.5, 0.5, None], [0.5, 0.5, 0.25]]
    assert entry["ap"] == pytest.approx(1.25 / 3) and entry["af"] == 0 and entry["n_params"] == 607_050
    low, high = entry["ap_interval"]
    assert low < entry["ap"] < high


def test_evaluate_learner_leaves_out_what_ends_cannot_tell(labels):
    ends = {f"{i}/{j}": predict(labels[j], 5) for i, j in [(0, 0), (1, 1), (2, 0), (2, 1), (2, 2)]}
    entry = metrics.evaluate_learner(ends, labels, [[0, 1, 2]], COSTS, ("demo_minus", "finetune", 0))
    assert entry["forgetting_max"] is None and entry["bwt"] == 0


def test_evaluate_learner_names_what_is_missing(labels):
    with pytest.raises(ValueError, match="s/par/0 has no predictions for 2/0, 1/1, 2/1, 2/2"):
        metrics.evaluate_learner({"0/0": predict(labels[0], 5)}, labels, [[0, 1, 2]], COSTS, ("s", "par", 0))
    with pytest.raises(ValueError, match="lack n_state, epochs"):
        costs = {key: value for key, value in COSTS.items() if key not in ("n_state", "epochs")}
        metrics.evaluate_learner({}, labels, [[0, 1, 2]], costs, ("s", "par", 0))


def test_chance_is_the_share_of_the_largest_class():
    assert metrics.chance_level(np.array([0, 0, 0, 1, 2, 2, 2, 2])) == 0.5
    assert metrics.chance_level(np.repeat(np.arange(5), 7)) == pytest.approx(0.2)
