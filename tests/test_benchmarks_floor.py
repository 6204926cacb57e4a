"""benchmarks/floor.py on features of known distribution."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.floor import distance_from_itself, halves


def separated(n_classes: int, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian classes in 64 dimensions, far apart."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_classes), per_class)
    centres = 6 * generator.normal(size=(n_classes, 64))
    return centres[labels] + generator.normal(size=(len(labels), 64)), labels


def test_halves_have_no_image_in_common():
    features, labels = separated(3, 50)
    (first, first_labels), (second, second_labels) = halves(features, labels, 20, np.random.default_rng(0))
    assert np.bincount(first_labels).tolist() == np.bincount(second_labels).tolist() == [20, 20, 20]
    rows = [tuple(row) for row in np.concatenate([first, second])]
    assert len(set(rows)) == 120 and set(rows) <= {tuple(row) for row in features}
    labelled = dict(zip(map(tuple, features), labels))
    assert [labelled[tuple(row)] for row in first] == first_labels.tolist()


def test_separated_classes_are_at_the_floor_and_corrected_at_0():
    features, labels = separated(10, 200)
    draws = range(5)
    paper, corrected = (
        np.mean([distance_from_itself(name, features, labels, 20, np.random.default_rng(draw)) for draw in draws])
        for name in ("paper", "corrected")
    )
    assert paper == pytest.approx(5 * (np.log1p(1 / 20) - np.log1p(-1 / 20)), rel=0.05)
    assert corrected == pytest.approx(0, abs=0.05)
