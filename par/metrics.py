"""Accuracy matrix, continual-learning metrics and their uncertainty.

``r_ij`` is the accuracy on the test set of task j after step i (tasks and steps counted from 1 in the formulas), T the
number of tasks. The field calls several different quantities "forgetting" (sources.md#metrics); each has its own name:

============================ ========================================================================== ==============
function                     formula                                                                    forgetting is
============================ ========================================================================== ==============
:func:`average_forgetting`   AF = 1/T sum_{j<=T} (r_Tj - r_jj), the paper's                             negative
:func:`backward_transfer`    BWT = 1/(T-1) sum_{j<T} (r_Tj - r_jj), GEM's and Mammoth's                 negative
:func:`forgetting_max`       1/(T-1) sum_{j<T} (max_{j<=i<T} r_ij - r_Tj), RWalk's and FACIL's          positive
:func:`forgetting_avalanche` 1/(T-1) sum_{j<T} (r_jj - r_Tj), Avalanche's StreamForgetting              positive
:func:`bwt_continuum`        2/(T(T-1)) sum_{i>j} (r_ij - r_jj), continuum's backward_transfer          negative
============================ ========================================================================== ==============

A metric that needs an entry nobody measured (``predict: ends`` leaves out the middle of the matrix) is NaN, as are
those that average over T-1 tasks when there is only one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from par.seeding import numpy_generator

RESAMPLES = 10_000
COSTS = ("n_params", "n_state", "n_experts", "n_cells_searched", "epochs")


def accuracy_matrix(
    predictions: Mapping[str, np.ndarray], labels: Sequence[np.ndarray], chains: Sequence[Sequence[int]]
) -> np.ndarray:
    """The matrix r_ij.

    Step i changes only the learner of the chain that holds task i. So r_ij is read from the predictions made after the
    latest step s <= i of task j's own chain. Where that step left no prediction of task j, the entry is unknown: an
    older prediction is not carried over a step that may have changed it.

    Args:
        predictions: key ``"i/j"`` (counted from 0) -> predicted classes [n_test_j], uint8, of task j after step i.
        labels: true classes of the test set of every task, integers [n_test_j].
        chains: task indices of every chain; together they hold every task once.

    Returns:
        float64 [T, T]; entries j > i and unknown entries are NaN.

    Raises:
        ValueError: the chains do not hold every task once, or a prediction does not fit its test set.
    """
    n_tasks = len(labels)
    if sorted(task for chain in chains for task in chain) != list(range(n_tasks)):
        raise ValueError(f"chains {[list(chain) for chain in chains]} must hold each of the {n_tasks} tasks once.")
    matrix = np.full((n_tasks, n_tasks), np.nan)
    for chain in chains:
        for position, task in enumerate(chain):
            for step, following in zip(chain[position:], [*chain[position + 1 :], n_tasks]):
                predicted = predictions.get(f"{step}/{task}")
                if predicted is None:
                    continue
                if predicted.shape != labels[task].shape:
                    raise ValueError(
                        f"predictions {step}/{task} have shape {predicted.shape}, the test set of task {task} has "
                        f"{labels[task].shape}; the stream changed after training, so train again."
                    )
                matrix[step:following, task] = np.mean(predicted == labels[task])
    return matrix


def chance_level(labels: np.ndarray) -> float:
    """The share of the largest class among a task's test labels ``[n]``: what a constant answer reaches at best."""
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))


def average_accuracy(matrix: np.ndarray) -> float:
    """AP = 1/T sum_j r_Tj, the paper's average performance (sources.md#metrics)."""
    return _mean(matrix[-1])


def average_forgetting(matrix: np.ndarray) -> float:
    """AF = 1/T sum_j (r_Tj - r_jj) over all T tasks, the paper's: the last task's 0 counts, negative is forgetting."""
    return _mean(matrix[-1] - matrix.diagonal())


def backward_transfer(matrix: np.ndarray) -> float:
    """BWT = 1/(T-1) sum_{j<T} (r_Tj - r_jj) (Lopez-Paz and Ranzato 2017; Mammoth): negative is forgetting."""
    return _mean((matrix[-1] - matrix.diagonal())[:-1])


def forgetting_max(matrix: np.ndarray) -> float:
    """1/(T-1) sum_{j<T} (max_{j<=i<T} r_ij - r_Tj) (Chaudhry et al. 2018; FACIL): positive is forgetting.

    Mammoth lets the maximum include step T, so that a task that improved to the end counts 0 instead of below 0.
    """
    last = len(matrix) - 1
    return _mean([matrix[task:last, task].max() - matrix[last, task] for task in range(last)])


def forgetting_avalanche(matrix: np.ndarray) -> float:
    """1/(T-1) sum_{j<T} (r_jj - r_Tj) (Avalanche's StreamForgetting after the last step): positive is forgetting."""
    return _mean((matrix.diagonal() - matrix[-1])[:-1])


def bwt_continuum(matrix: np.ndarray) -> float:
    """2/(T(T-1)) sum_{i>j} (r_ij - r_jj) (Diaz-Rodriguez et al. 2018; continuum): negative is forgetting."""
    return _mean((matrix - matrix.diagonal())[np.tril_indices(len(matrix), k=-1)])


def ap_interval(
    accuracies: np.ndarray, n_test: np.ndarray, generator: np.random.Generator, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """95% percentile bootstrap interval of AP over the test images of every task.

    Drawing n images with replacement from n of which a share p is correct gives Binomial(n, p) correct ones, so the
    resamples are drawn as counts: exact, and independent of the number of images.

    Args:
        accuracies: r_Tj [T]. n_test: test images of every task, integers [T].
    """
    correct = np.rint(np.multiply(accuracies, n_test))
    resampled = generator.binomial(n_test, correct / n_test, size=(resamples, len(n_test))) / n_test
    low, high = np.percentile(resampled.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def evaluate_learner(
    predictions: Mapping[str, np.ndarray],
    labels: Sequence[np.ndarray],
    chains: Sequence[Sequence[int]],
    costs: Mapping[str, Any],
    names: Sequence[object],
) -> dict[str, Any]:
    """One entry of ``results/<stream>.json``: all metrics of one learner and seed, ready for JSON (NaN as None).

    Args:
        predictions, labels, chains: see :func:`accuracy_matrix`.
        costs: what :data:`COSTS` names, copied into the entry: parameters and other stored numbers (counts), experts,
            cells searched, epochs trained; further keys are copied too. No wall-clock times: equal runs have equal
            entries.
        names: name of the bootstrap's random stream, such as ``(stream, learner, seed)``.

    Raises:
        ValueError: a cost is missing, or the diagonal or the last row of the accuracy matrix is incomplete.
    """
    missing = [key for key in COSTS if key not in costs]
    if missing:
        raise ValueError(f"costs of {'/'.join(map(str, names))} lack {', '.join(missing)}; train again.")
    matrix = accuracy_matrix(predictions, labels, chains)
    last = len(labels) - 1
    unknown = [f"{i}/{j}" for j in range(last + 1) for i in sorted({j, last}) if np.isnan(matrix[i, j])]
    if unknown:
        raise ValueError(
            f"{'/'.join(map(str, names))} has no predictions for {', '.join(unknown)} (step/task); train again."
        )
    n_test = np.array([len(of_task) for of_task in labels])
    return {
        **costs,
        "accuracy": [[_or_none(value) for value in row] for row in matrix],
        "ap": average_accuracy(matrix),
        "ap_interval": list(ap_interval(matrix[-1], n_test, numpy_generator("bootstrap", *names))),
        "af": average_forgetting(matrix),
        "bwt": _or_none(backward_transfer(matrix)),
        "forgetting_max": _or_none(forgetting_max(matrix)),
        "forgetting_avalanche": _or_none(forgetting_avalanche(matrix)),
        "bwt_continuum": _or_none(bwt_continuum(matrix)),
    }


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
