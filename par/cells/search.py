"""Search for a cell by sampling one operation per edge ("MDL", sources.md#par-search) and two ways to learn from it.

One epoch = draw one operation for every edge of the normal and of the reduction cell, train that path of the
:class:`par.cells.supernet.Supernet` on half of the training data, measure its accuracy on the other half, and update
the distributions that are drawn from. Arrays over operations have the axes kind (normal, reduce), edge (14, in the
order of ``EDGES``), operation (6, in the order of ``OPERATIONS``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from scipy.special import entr, softmax
from torch import Tensor, nn

from par import seeding
from par.cells.genotype import DARTS_V1, EDGES, KINDS, N_NODES, OPERATIONS, Genotype, random_genotype
from par.cells.supernet import Supernet
from par.config import ExpertSettings, Recipe, SearchSettings
from par.training import trainer
from par.training.images import Images
from par.training.losses import cross_entropy

SHAPE = (len(KINDS), len(EDGES), len(OPERATIONS))


@dataclass(frozen=True)
class SearchResult:
    """What a search found, and its course.

    ``history`` has one row per epoch (none if nothing was trained): epoch, loss, accuracy (on the half that is not
    trained on), learning_rate, seconds, normal and reduce (the 14 drawn operations, separated by spaces), and, of the
    distributions they were drawn from, largest_probability and entropy (nats), both means over the 28 edges.
    """

    genotype: Genotype
    history: list[dict[str, Any]]


class Update(Protocol):
    """How a search draws operations and learns from the accuracy they reach."""

    def probabilities(self) -> np.ndarray:
        """Float64 [2, 14, 6], the distributions that :func:`sample` draws from."""

    def update(self, choice: np.ndarray, accuracy: float) -> None:
        """Learn that the operations ``choice`` (int64 [2, 14]) reached ``accuracy``."""

    def genotype(self) -> Genotype:
        """The best cell so far."""

    def state(self) -> dict[str, Any]:
        """All that it has learned, as plain data and tensors."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state`."""


class Mdl:
    """The paper's update as released: probabilities that win or lose ``step`` by comparing operations pairwise.

    ``p_i += step * (#{j: n_i < n_j and a_i > a_j} - #{j: n_i > n_j and a_i < a_j})``, where n counts how often an
    operation was drawn and a is its latest accuracy; then ``p = softmax(p)``, after every epoch. The softmax of
    numbers near 1/6 is near 1/6: probabilities hardly leave uniform, as in the released code (sources.md#par-search).
    """

    def __init__(self, step: float):
        self.step = step
        self._probabilities = np.full(SHAPE, 1 / len(OPERATIONS))
        self._count = np.zeros(SHAPE)
        self._latest = np.zeros(SHAPE)

    def probabilities(self) -> np.ndarray:
        return self._probabilities

    def update(self, choice: np.ndarray, accuracy: float) -> None:
        drawn = _one_hot(choice)
        self._count += drawn
        self._latest[drawn] = accuracy
        rarer = self._count[..., :, None] < self._count[..., None, :]  # [2, 14, i, j]: i was drawn less often than j
        better = self._latest[..., :, None] > self._latest[..., None, :]
        wins = (rarer & better).sum(axis=-1)
        losses = (rarer & better).sum(axis=-2)  # j is rarer and better than i
        self._probabilities = softmax(self._probabilities + self.step * (wins - losses), axis=-1)

    def genotype(self) -> Genotype:
        return best_genotype(self._probabilities)

    def state(self) -> dict[str, Any]:
        arrays = self._probabilities, self._count, self._latest
        return {"arrays": [torch.from_numpy(array) for array in arrays]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._probabilities, self._count, self._latest = (array.numpy() for array in state["arrays"])


class Advantage:
    """Ours: operations are valued by how much better than usual the epochs were in which they were drawn.

    The value of an operation is the mean of ``accuracy - moving average of accuracy`` over its epochs, so that neither
    the rising training curve nor, in the mean, the draws of the other edges count; an operation never drawn has
    value 0. Draws: ``(1 - exploration) * softmax(values / temperature) + exploration / 6``, with the root mean square
    of all differences so far as temperature, which makes the draws independent of the task's scale of accuracies.

    Both constants were measured on simulated accuracies (14 edges, 100 epochs, rising curve, one good operation worth
    0.05 amid effects and noise of 0.02, 1,000 runs): temperatures of 0.5, 1 and 2 root mean squares find the good
    operation in 92%, 92% and 94% of the runs, fixed ones of 0.005, 0.02 and 0.05 in 73%, 90% and 93%; averages of rate
    0.1, 0.3 and 0.5 in 90%, 92% and 93%. Uniform draws valued in this way find it in 91%, ``mdl`` in 30%, chance in
    20%: what matters is the value, not whom the draws favour (sources.md#search-simulation).
    """

    AVERAGE_RATE = 0.3  # weight of the newest accuracy in the moving average

    def __init__(self, exploration: float):
        self.exploration = exploration
        self._count = np.zeros(SHAPE)
        self._sum = np.zeros(SHAPE)
        self._average: float | None = None
        self._squares: list[float] = []

    def values(self) -> np.ndarray:
        """Float64 [2, 14, 6], in units of accuracy."""
        return self._sum / np.maximum(self._count, 1)

    def probabilities(self) -> np.ndarray:
        temperature = np.sqrt(np.mean(self._squares)) if any(self._squares) else 1.0
        greedy = softmax(self.values() / temperature, axis=-1)
        return (1 - self.exploration) * greedy + self.exploration / len(OPERATIONS)

    def update(self, choice: np.ndarray, accuracy: float) -> None:
        average = accuracy if self._average is None else self._average
        difference = accuracy - average
        self._average = average + self.AVERAGE_RATE * difference
        self._squares.append(difference**2)
        drawn = _one_hot(choice)
        self._count += drawn
        self._sum[drawn] += difference

    def genotype(self) -> Genotype:
        return best_genotype(self.values())

    def state(self) -> dict[str, Any]:
        arrays = [torch.from_numpy(array) for array in (self._count, self._sum)]
        return {"arrays": arrays, "average": self._average, "squares": self._squares}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._count, self._sum = (array.numpy() for array in state["arrays"])
        self._average, self._squares = state["average"], state["squares"]


def sample(probabilities: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One operation per edge: indices int64 of shape ``probabilities.shape[:-1]``."""
    cumulative = probabilities.cumsum(axis=-1)
    thresholds = generator.random((*probabilities.shape[:-1], 1)) * cumulative[..., -1:]
    return (cumulative <= thresholds).sum(axis=-1)


def best_genotype(values: np.ndarray) -> Genotype:
    """The cell of the highest values (float [2, 14, 6]): per edge the best operation but "none", per node the two
    edges whose best operation is worth most.

    The value of "none" plays no part (sources.md#par-search). Ties go to the operation that comes first in
    ``OPERATIONS`` and to the earlier predecessor; a node lists its two edges by predecessor.
    """

    def node(kind_values: np.ndarray, index: int) -> tuple[tuple[str, int], ...]:
        edges = [edge for edge, (target, _) in enumerate(EDGES) if target == index]
        operations = 1 + kind_values[edges, 1:].argmax(axis=1)
        best = kind_values[edges, operations]
        kept = sorted(np.argsort(-best, kind="stable")[:2].tolist())
        return tuple((OPERATIONS[operations[predecessor]], predecessor) for predecessor in kept)

    return Genotype(
        **{kind: tuple(node(values[index], number) for number in range(N_NODES)) for index, kind in enumerate(KINDS)}
    )


class CellSearch(trainer.Trainable):
    """The search as something to train: an epoch starts with a draw and ends with an update.

    Its steps are not captured: every epoch has other ones, and whether their capture would pay is unmeasured.
    """

    def __init__(self, supernet: Supernet, n_classes: int, updates: Update, generator: np.random.Generator):
        super().__init__()
        self.supernet = supernet
        self.head = nn.Linear(supernet.n_features, n_classes)
        self.updates = updates
        self.generator = generator
        self.draws: list[dict[str, Any]] = []

    def modules_to_train(self) -> list[nn.Module]:
        return [self.supernet, self.head]

    def start_epoch(self, epoch: int) -> None:
        probabilities = self.updates.probabilities()
        self.choice = sample(probabilities, self.generator)
        self.supernet.choose(dict(zip(KINDS, self.choice.tolist())))
        names = {kind: " ".join(OPERATIONS[i] for i in self.choice[index]) for index, kind in enumerate(KINDS)}
        self.draws.append(
            names
            | {
                "largest_probability": float(probabilities.max(axis=-1).mean()),
                "entropy": float(entr(probabilities).sum(axis=-1).mean()),
            }
        )

    def loss(self, batch: trainer.Batch) -> Tensor:
        return cross_entropy(self.predict(batch.images), batch.labels)

    def predict(self, images: Tensor) -> Tensor:
        return self.head(self.supernet(images))

    def end_epoch(self, epoch: int, valid_accuracy: float) -> None:
        self.updates.update(self.choice, valid_accuracy)

    def step_state(self) -> dict[str, Any]:
        return {
            "updates": self.updates.state(),
            "generator": self.generator.bit_generator.state,
            "draws": self.draws,
        }

    def load_step_state(self, state: Mapping[str, Any]) -> None:
        self.updates.load_state(state["updates"])
        self.generator.bit_generator.state = state["generator"]
        self.draws = state["draws"]


def search_cell(
    train: Images,
    n_classes: int,
    expert: ExpertSettings,
    search: SearchSettings,
    recipe: Recipe,
    key: str,
    progress: Callable[[int], None] | None = None,
    checkpoint: trainer.Checkpoint | None = None,
) -> SearchResult:
    """Search a cell for one task, on its training data alone.

    Half of the images, drawn once, train the search network; the accuracy that guides the search is measured on the
    others, without augmentation (the reference leaves it on). ``random`` and ``fixed`` train nothing.

    Args:
        train: the task's training images, at least 2; the search runs on their device.
        expert: shape of the search network.
        search: which update, for how many epochs, at which learning rate.
        recipe: of the task; the search takes its batch size, momentum and weight decay.
        key: name of the random streams.
        progress: called with the number of images of each training batch.
        checkpoint: where the search saves itself, and from where a killed one goes on.
    """
    generator = seeding.numpy_generator(key, "operations")
    if search.update == "fixed":
        return SearchResult(DARTS_V1, [])
    if search.update == "random":
        return SearchResult(random_genotype(generator), [])
    updates = Mdl(search.step) if search.update == "mdl" else Advantage(search.exploration)
    with seeding.seeded_layers(key, "supernet"):
        model = CellSearch(Supernet(expert.cells, expert.channels), n_classes, updates, generator).to(
            train.pixels.device
        )
    rows = torch.from_numpy(seeding.numpy_generator(key, "halves").permutation(len(train)))
    halves = train.subset(rows[: len(rows) // 2]), train.subset(rows[len(rows) // 2 :])
    search_recipe = dataclasses.replace(
        recipe,
        epochs=search.epochs,
        optimizer="sgd",
        learning_rate=search.learning_rate,
        min_learning_rate=search.min_learning_rate,
        schedule="cosine",
        patience=None,
        clip_norm=search.clip_norm,
    )
    log = trainer.fit(
        model,
        *halves,
        search_recipe,
        f"{key}/search",
        keep_best=False,
        progress=progress,
        checkpoint=checkpoint,
    )
    history = []
    for row, draw in zip(log, model.draws, strict=True):
        epoch = {("accuracy" if name == "valid_accuracy" else name): value for name, value in row.items()}
        history.append(epoch | draw)
    return SearchResult(updates.genotype(), history)


def _one_hot(choice: np.ndarray) -> np.ndarray:
    """Bool [2, 14, 6] of int64 [2, 14]."""
    return choice[..., None] == np.arange(len(OPERATIONS))
