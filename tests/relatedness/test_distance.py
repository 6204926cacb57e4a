"""The three distance estimators against slow loops written from the equations, and their properties."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ortho_group

from par.relatedness import distance
from par.relatedness.distance import FLOOR, UNRELATED, distance_matrix, pair_score, pairwise, to_each, to_score
from par.relatedness.prototypes import class_prototypes

ESTIMATORS = ("paper", "reference", "corrected")


def gaussian_task(generator, centres, counts):
    """Features (unit variance around each centre), labels in random order, prototypes."""
    counts = np.broadcast_to(counts, len(centres))
    labels = generator.permutation(np.repeat(np.arange(len(centres)), counts))
    features = centres[labels] + generator.normal(size=(len(labels), centres.shape[1]))
    return features, labels, class_prototypes(features, labels, len(centres))


def two_tasks(seed=0, dimensions=24, spread=1.0, new_counts=(6, 9, 14, 3), old_counts=(5, 12, 4)):
    """A task of four unequal, overlapping classes and an older one of three."""
    generator = np.random.default_rng(seed)
    new = gaussian_task(generator, spread * generator.normal(size=(len(new_counts), dimensions)), new_counts)
    old = gaussian_task(generator, spread * generator.normal(size=(len(old_counts), dimensions)), old_counts)
    return new, old[2]


def slow_distance(estimator, features, labels, own, other):
    """Word by word: paper eq. 6, sources.md#par-code and sources.md#distance-corrected."""
    total = 0.0
    for label in range(len(own.means)):
        logarithms = []
        for x in features[labels == label]:
            if estimator == "corrected":
                rhos = []
                for c, (mean, n) in enumerate(zip(own.means, own.counts, strict=True)):
                    left_out = math.dist(x, mean) * (n / (n - 1) if c == label else 1.0)
                    rhos.append(left_out / math.sqrt(1 + 1 / (n - 1)))
                rho = min(rhos)
                nu = min(math.dist(x, mean) / math.sqrt(1 + 1 / m) for mean, m in zip(other.means, other.counts))
            else:
                rho = math.dist(x, own.means[label])
                nu = min(math.dist(x, mean) for mean in other.means)
            logarithms.append(math.log(nu / rho))
        mean_logarithm = sum(logarithms) / len(logarithms)
        total += max(mean_logarithm, 0.0) if estimator == "reference" else mean_logarithm
    return total


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_equals_the_slow_loop(estimator, spread):
    (features, labels, own), other = two_tasks(spread=spread)
    expected = slow_distance(estimator, features, labels, own, other)
    assert pairwise(estimator, features, labels, own, other) == pytest.approx(expected, abs=1e-12)


def test_corrected_is_the_formula_of_the_design_where_classes_have_equal_counts():
    n, m = 6, 4
    (x, labels, own), other = two_tasks(spread=0.3, new_counts=(n,) * 4, old_counts=(m,) * 3)
    to_own = np.linalg.norm(x[:, None] - own.means, axis=2)
    to_own[np.arange(len(x)), labels] *= n / (n - 1)
    nu = np.linalg.norm(x[:, None] - other.means, axis=2).min(axis=1)
    logarithm = np.log(nu / to_own.min(axis=1)) - 0.5 * (math.log(1 + 1 / m) - math.log(1 + 1 / (n - 1)))
    expected = sum(logarithm[labels == c].mean() for c in range(4))
    assert pairwise("corrected", x, labels, own, other) == pytest.approx(expected, abs=1e-12)


def test_left_out_sample_is_exact():
    """Multiplying by n/(n-1) is the distance to the mean of the others: with one class and one old prototype."""
    features = np.random.default_rng(0).normal(size=(5, 8))
    labels, own = np.zeros(5, int), class_prototypes(features, np.zeros(5, int), 1)
    other = class_prototypes(features + 3, labels, 1)
    rhos = [math.dist(x, np.delete(features, i, axis=0).mean(axis=0)) for i, x in enumerate(features)]
    nus = [math.dist(x, other.means[0]) for x in features]
    floor = 0.5 * (math.log(1 + 1 / 5) - math.log(1 + 1 / 4))
    expected = np.mean(np.log(nus) - np.log(rhos)) - floor
    assert pairwise("corrected", features, labels, own, other) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_many_tasks_at_once_equal_one_by_one(estimator):
    tasks = [two_tasks(seed)[0] for seed in range(4)]
    matrix = distance_matrix(estimator, *(list(column) for column in zip(*tasks, strict=True)))
    for i, (features, labels, own) in enumerate(tasks):
        for j in range(4):
            if j < i:
                expected = pairwise(estimator, features, labels, own, tasks[j][2])
                assert matrix[i, j] == pytest.approx(expected, abs=1e-12)
            else:
                assert np.isnan(matrix[i, j])


def run_python(*arguments):
    """Standard output of a fresh interpreter in the repository."""
    repository = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, *arguments]
    run = subprocess.run(command, cwd=repository, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


# --- the floor (sources.md#distance-floor) ---------------------------------------------------------------------------

FLOOR_TABLE = [  # n, m, classes, D as simulated there, mapped
    (200, 200, 10, 0.050, 0.050),
    (50, 50, 10, 0.202, 0.202),
    (50, 50, 5, 0.101, 0.101),
    (60, 60, 5, 0.084, 0.084),
    (20, 200, 10, 0.283, 0.283),
    (200, 20, 10, 0.269, 0.269),
    (20, 20, 10, 0.506, 0.506),
    (500, 500, 5, 0.010, 0.010),
    (500, 3, 5, 0.720, 0.720),
    (3, 500, 5, 1.015, 0.869),
    (3, 3, 5, 1.715, 0.968),
]


def mean_distance(estimator, n, m, n_classes, centre_distance, repeats, dimensions=64):
    """Mean distance between two samples of one distribution; centres lie ``centre_distance`` sigma apart."""
    generator = np.random.default_rng(n * 1000 + m)
    distances = []
    for _ in range(repeats):
        centres = generator.normal(size=(n_classes, dimensions)) * centre_distance / math.sqrt(2 * dimensions)
        features, labels, own = gaussian_task(generator, centres, n)
        distances.append(pairwise(estimator, features, labels, own, gaussian_task(generator, centres, m)[2]))
    return np.mean(distances)


@pytest.mark.parametrize(("n", "m", "n_classes", "expected", "mapped"), FLOOR_TABLE)
def test_paper_shows_the_floor_of_small_samples(n, m, n_classes, expected, mapped):
    simulated = mean_distance("paper", n, m, n_classes, centre_distance=25, repeats=30)
    theory = n_classes / 2 * (math.log(1 + 1 / m) - math.log(1 - 1 / n))
    assert simulated == pytest.approx(expected, rel=0.03, abs=0.002)
    assert simulated == pytest.approx(theory, rel=0.03, abs=0.002)
    assert to_score(simulated) == pytest.approx(mapped, abs=0.012)


@pytest.mark.parametrize("centre_distance", [0.5, 1, 2, 4, 25])
@pytest.mark.parametrize("n", [3, 20, 200])
@pytest.mark.parametrize("m", [3, 20, 200])
def test_corrected_has_no_floor(n, m, centre_distance):
    """Of 10 classes, from nearly alike to far apart."""
    repeats = 16 if max(n, m) < 200 else 6
    by_class = mean_distance("corrected", n, m, 10, centre_distance, repeats) / 10
    assert abs(by_class) < (0.15 if 3 in (n, m) else 0.03)


def test_corrected_keeps_unlike_tasks_apart():
    (features, labels, own), other = two_tasks(spread=3.0, new_counts=(20,) * 4, old_counts=(20,) * 3)
    assert to_score(pairwise("corrected", features, labels, own, other)) > 0.95


# --- properties ------------------------------------------------------------------------------------------------------


def test_paper_distance_of_separated_classes_to_themselves_is_zero():
    (features, labels, own), _ = two_tasks(spread=9.0)
    assert pairwise("paper", features, labels, own, own) == pytest.approx(0.0, abs=1e-12)


def test_paper_distance_of_overlapping_classes_to_themselves_is_negative():
    (features, labels, own), _ = two_tasks(spread=0.1, new_counts=(40,) * 10)
    assert pairwise("paper", features, labels, own, own) < -0.05


@pytest.mark.parametrize("spread", [0.1, 9.0])
def test_reference_calls_a_task_unrelated_to_itself(spread):
    (features, labels, own), _ = two_tasks(spread=spread)
    raw = pairwise("reference", features, labels, own, own)
    assert raw == 0.0  # exactly, whatever rounding did to the logarithms
    assert pair_score("reference", raw) == 1.0
    assert pair_score("paper", raw) == 0.0


def test_corrected_distance_to_itself_is_just_below_zero():
    """Nothing is left out on the old side, so a sample helps to attract itself: 0.5 ln((n-1)/(n+1)) a class."""
    (features, labels, own), _ = two_tasks(spread=9.0)
    expected = sum(0.5 * math.log((n - 1) / (n + 1)) for n in own.counts)
    assert pairwise("corrected", features, labels, own, own) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_order_of_classes_and_samples_does_not_matter(estimator):
    (features, labels, own), other = two_tasks(spread=0.5)
    before = pairwise(estimator, features, labels, own, other)
    renamed = np.array([2, 0, 3, 1])[labels]
    order = np.random.default_rng(1).permutation(len(labels))
    features, labels = features[order], renamed[order]
    other = type(other)(other.means[::-1], other.counts[::-1])
    assert pairwise(estimator, features, labels, class_prototypes(features, labels, 4), other) == pytest.approx(before)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_scaling_rotating_and_moving_the_features_does_not_matter(estimator):
    (features, labels, own), other = two_tasks(spread=0.5)
    before = pairwise(estimator, features, labels, own, other)
    rotation = ortho_group.rvs(features.shape[1], random_state=0)

    def move(points):
        return 7.0 * points @ rotation + 5.0

    moved, other = move(features), type(other)(move(other.means), other.counts)
    assert pairwise(estimator, moved, labels, class_prototypes(moved, labels, 4), other) == pytest.approx(before)


def test_score_is_eq_8_and_never_decreases():
    assert to_score(0.5) == 0.5
    assert to_score(1.5) == pytest.approx(1 - math.exp(-3.0))
    assert to_score(-0.5) == pytest.approx(1 - math.exp(1.0))  # the smaller of the two
    scores = to_score(np.linspace(-60, 60, 500))
    assert np.isfinite(scores).all() and (np.diff(scores) >= 0).all() and scores[-1] == 1.0


# --- zero distances and numerical accuracy ---------------------------------------------------------------------------


def test_squared_distance_of_identical_vectors_is_exactly_zero():
    points = np.random.default_rng(0).normal(size=(40, 512)) + 30.0
    squared = distance.squared_distances(points, points[:30].copy())
    assert (np.diagonal(squared) == 0.0).all()
    assert (squared[:, 30:] > 0).all()


@pytest.mark.parametrize("gap", [1e-9, 1e-4, 1e-2, 1.0])
def test_close_vectors_keep_their_digits(gap):
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(5, 64)) + 10.0
    points = np.repeat(centres, 3000, axis=0)[: 3000 * 2] + gap * generator.normal(size=(6000, 64))
    expected = ((points[:, None] - centres[None]) ** 2).sum(axis=2).T
    np.testing.assert_allclose(distance.squared_distances(points, centres), expected, rtol=1e-10)


@pytest.mark.parametrize("estimator", ["paper", "reference"])
def test_class_of_one_sample_makes_a_task_unrelated_but_finite(estimator):
    (features, labels, own), other = two_tasks(new_counts=(6, 1, 5, 5))
    raw = pairwise(estimator, features, labels, own, other)
    assert -math.log(FLOOR) / 2 < raw < math.inf
    assert to_score(raw) == 1.0


@pytest.mark.parametrize("estimator", ["paper", "reference"])
def test_class_of_one_sample_that_the_old_task_has_too_counts_zero(estimator):
    features = np.array([[0.0, 4.0], [0.0, 6.0], [9.0, 9.0]], np.float32)
    labels = np.array([0, 0, 1])
    own = class_prototypes(features, labels, 2)
    assert pairwise(estimator, features, labels, own, own) == 0.0


def test_corrected_leaves_out_classes_of_one_sample():
    (features, labels, own), other = two_tasks(new_counts=(6, 1, 5, 5))
    several = labels != 1
    kept = np.array([0, -1, 1, 2])[labels[several]]
    without = pairwise("corrected", features[several], kept, class_prototypes(features[several], kept, 3), other)
    assert pairwise("corrected", features, labels, own, other) == pytest.approx(without * 4 / 3)


def test_corrected_knows_nothing_of_a_task_with_one_sample_a_class():
    (features, labels, own), other = two_tasks(new_counts=(1, 1, 1))
    np.testing.assert_array_equal(to_each("corrected", features, labels, own, [other, other]), [UNRELATED] * 2)
    assert to_score(UNRELATED) == 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_degenerate_features_stay_finite(estimator):
    """All features equal, as a dead layer gives, and an old prototype on top of a sample."""
    labels = np.repeat([0, 1], 3)
    dead = np.zeros((6, 4))
    own = class_prototypes(dead, labels, 2)
    assert pairwise(estimator, dead, labels, own, own) <= 0.0
    features = np.random.default_rng(0).normal(size=(6, 4))
    onto = class_prototypes(features, np.arange(6), 6)
    values = to_each(estimator, features, labels, class_prototypes(features, labels, 2), [onto, own])
    assert np.isfinite(values).all() and np.isfinite(to_score(values)).all()
    assert values[0] < values[1] or estimator == "reference"


def test_importing_needs_no_torch():
    run_python("-c", "import sys, par.relatedness.routing; assert 'torch' not in sys.modules")


def test_the_benchmark_computes_the_same_as_broadcasting():
    """Ratios of 30 (numpy) and 34-85 (torch, as the authors do; it depends on the allocator) were measured by it."""
    done = run_python("benchmarks/distance.py", "--tasks", "3", "--rounds", "1")
    lines = [line for line in done.splitlines() if "ratio" in line]
    assert len(lines) == 2 and all(float(line.split()[-1]) < 1e-9 for line in lines)
