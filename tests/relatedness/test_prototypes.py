"""Class means and their counts."""

from __future__ import annotations

import numpy as np
import pytest

from par.relatedness.prototypes import class_prototypes
from par.schema import ConfigError


def test_means_and_counts_of_unequal_classes():
    features = np.array([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0], [0.0, 0.0], [6.0, 3.0], [0.0, 3.0]], np.float32)
    prototypes = class_prototypes(features, np.array([1, 1, 0, 2, 2, 2]), 3)
    np.testing.assert_array_equal(prototypes.means, [[5.0, 5.0], [2.0, 1.0], [2.0, 2.0]])
    np.testing.assert_array_equal(prototypes.counts, [1, 2, 3])
    assert prototypes.means.dtype == np.float64 and prototypes.counts.dtype == np.int64


def test_mean_is_computed_in_float64():
    features = np.full((3, 1), 2**24, np.float32)
    features[1:] = 1.0  # 2^24 + 1 is no float32
    assert class_prototypes(features, np.zeros(3, int), 1).means[0, 0] == (2**24 + 2) / 3


def test_mean_of_identical_samples_is_that_sample_exactly():
    sample = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    means = class_prototypes(np.repeat(sample, 7, axis=0), np.zeros(7, int), 1).means
    np.testing.assert_array_equal(means[0], sample[0])


def test_class_without_samples_is_named():
    with pytest.raises(ConfigError, match="class 1, 3 of 4 has no samples"):
        class_prototypes(np.ones((3, 2)), np.array([0, 2, 2]), 4)
