"""The task of an image by its nearest class prototype."""

from __future__ import annotations

import numpy as np
import pytest

from par.relatedness.identification import (
    fit_temperature,
    held_out_distances,
    identify,
    task_distances,
    task_probabilities,
)
from par.relatedness.prototypes import Prototypes, class_prototypes


def tasks(spread: float, per_class: int = 20) -> tuple[list[np.ndarray], list[np.ndarray], list[Prototypes]]:
    """Features, labels and prototypes of three tasks of 2, 3 and 2 classes around random centres."""
    generator = np.random.default_rng(0)
    features, labels = [], []
    for n_classes in (2, 3, 2):
        labels.append(np.repeat(np.arange(n_classes), per_class))
        centres = generator.normal(size=(n_classes, 8))
        features.append(centres[labels[-1]] + spread * generator.normal(size=(len(labels[-1]), 8)))
    found = [class_prototypes(*pair, int(pair[1].max()) + 1) for pair in zip(features, labels)]
    return features, labels, found


def test_distances_are_those_to_the_nearest_class_of_every_task():
    features, _, prototypes = tasks(0.5)
    expected = [[min(((x - mean) ** 2).sum() for mean in of_task.means) for of_task in prototypes] for x in features[1]]
    np.testing.assert_allclose(task_distances(features[1], prototypes), expected, rtol=1e-9)
    assert np.array_equal(identify(features[1], prototypes), np.argmin(expected, axis=1))


def test_of_tasks_equally_near_the_earliest_is_taken():
    features, _, prototypes = tasks(0.1)
    assert set(identify(features[2], [*prototypes, prototypes[2]])) == {2}


def test_held_out_distances_are_those_to_means_without_the_image():
    features, labels, prototypes = tasks(0.5, per_class=4)
    found = held_out_distances(features[1], labels[1], 1, prototypes)
    for row in range(len(labels[1])):
        kept = np.arange(len(labels[1])) != row
        own = class_prototypes(features[1][kept], labels[1][kept], 3)
        expected = task_distances(features[1][[row]], [prototypes[0], own, prototypes[2]])
        np.testing.assert_allclose(found[[row]], expected, rtol=1e-9)


def test_a_class_of_one_image_has_no_mean_without_it():
    features = np.array([[0.0, 0.0], [5.0, 5.0]])
    prototypes = [class_prototypes(features, np.array([0, 1]), 2), class_prototypes(features[:1] + 1, np.array([0]), 1)]
    found = held_out_distances(features, np.array([0, 1]), 0, prototypes)
    np.testing.assert_allclose(found[:, 0], [50.0, 50.0])  # the other class
    assert np.isinf(held_out_distances(features[:1] + 1, np.array([0]), 1, prototypes)[:, 1]).all()


@pytest.mark.parametrize("spread", [0.2, 1.0])
def test_the_temperature_makes_probabilities_that_match_how_often_the_task_is_right(spread):
    features, labels, prototypes = tasks(spread, per_class=200)
    distances = np.concatenate(
        [held_out_distances(*pair, task, prototypes) for task, pair in enumerate(zip(features, labels))]
    )
    truth = np.repeat(np.arange(3), [len(of_task) for of_task in labels])
    probabilities = task_probabilities(distances, fit_temperature(distances, truth))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert np.array_equal(probabilities.argmax(axis=1), distances.argmin(axis=1))
    right = np.mean(probabilities.argmax(axis=1) == truth)
    assert abs(probabilities.max(axis=1).mean() - right) < 0.05
