"""A finished run as a classifier: the learner that ``train`` left, without the store and without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from par.config import LearnerSettings
from par.files import read_json
from par.methods import load_method
from par.methods.bases.method import Method
from par.settings import from_plain
from par.streams import SourceError, Stream, Task, load_stream
from par.text import listing
from par.training import trainer
from par.training.images import Images
from par.training.precision import Precision, policy
from par.use.identifier import Identifier

UNNAMED = ("auto", "any")  # what stands for a task where nobody says it


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, most probable first: their tasks, names and probabilities."""

    tasks: tuple[Task, ...]
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


class Predictor:
    """A learner after its last task, able to answer for every task of its stream.

    Args:
        stream: what it learned; only the descriptions of the tasks are used.
        settings: those that it was learned with.
        chains: the content of ``model.pt``.
        device, precision: where and how it computes.
        learned_on: the type of the device that learned it; None where that is not known.
    """

    def __init__(
        self,
        stream: Stream,
        settings: LearnerSettings,
        chains: Sequence[Mapping[str, Any]],
        device: torch.device | str = "cpu",
        precision: Precision = "float32",
        learned_on: str | None = None,
    ):
        self.stream, self.settings, self.chains = stream, settings, chains
        self.device, self.precision, self.learned_on = torch.device(device), precision, learned_on
        self._learners: dict[int, Method] = {}

    @classmethod
    def of_run(cls, run: Path, directory: Path, device: torch.device | str = "cpu") -> Predictor:
        """The learner of ``runs/<stream>/<learner>/<seed>`` on the built stream ``data/streams/<stream>/<seed>``.

        It computes in the precision that it was learned in; on another type of device in float32.

        Raises:
            SourceError: there is no such run, or the stream is not the one that it learned.
            ConfigError: it was learned with settings that this version of the code does not have.
        """
        for name in ("settings.json", "model.pt"):
            if not (run / name).is_file():
                raise SourceError(f"{run} holds no {name}; train this learner first (dvc repro).")
        stream = load_stream(directory)
        try:
            recorded = read_json(run / "settings.json")
            digest, plain, computed = recorded["stream"]["digest"], recorded["learner"], recorded["computed"]
            chains = torch.load(run / "model.pt", weights_only=True, map_location="cpu")
        except Exception as error:  # a damaged file of tensors raises nearly anything
            words = " ".join(str(error).split())[:200]
            raise SourceError(f"{run} cannot be read ({words}); delete it and train again (dvc repro).") from error
        if digest != stream.digest:
            raise SourceError(
                f"{run} was learned on other images than those in {directory}; build the stream and train again "
                "(dvc repro)."
            )
        same = torch.device(device).type == computed["device"]
        precision: Precision = computed["precision"] if same else "float32"
        settings = from_plain(plain, f"{run}/settings.json")
        return cls(stream, settings, chains, device, precision, computed["device"])

    def chain(self, task: int) -> int:
        """The number of the chain that holds a task."""
        return next(number for number, chain in enumerate(self.chains) if task in chain["tasks"])

    def learner(self, task: int) -> Method:
        """The learner of the chain that holds ``task``, as it was after the last task of the chain."""
        number = self.chain(task)
        if number not in self._learners:
            learner: Method = load_method(self.settings.method)(self.settings, self.device)
            learner.restore(self.chains[number]["state"])
            self._learners[number] = learner
        return self._learners[number]

    def logits(self, pixels: np.ndarray, task: int) -> np.ndarray:
        """Logits of images for the classes of a task, computed by the loop that made ``predictions.npz``.

        All test images of a task in their order give, on the same machine, the logits of training bit for bit. Other
        groupings (one image alone, the same images among others) may change the last bits, because a matrix product of
        another size sums in another order; only classes that are equally probable to some six digits can then change
        places.

        Args:
            pixels: uint8 ``[n, 3, H, W]`` of the task's image size.

        Returns:
            float32 ``[n, K]``.
        """
        described, learner = self.stream.tasks[task], self.learner(task)
        parts = [torch.zeros(0, described.n_classes)]

        def answer(batch: torch.Tensor) -> torch.Tensor:
            logits = learner.logits(batch, task)
            parts.append(logits.float().cpu())
            return logits

        if len(pixels):
            labels = np.zeros(len(pixels), np.int64)  # not known, not used
            images = Images(pixels, labels, described.mean, described.std, (), self.device)
            with policy(self.device, self.precision):
                trainer.predict_classes(answer, images)
        return torch.cat(parts).numpy()

    def probabilities(self, pixels: np.ndarray, task: int) -> np.ndarray:
        """Softmax of :meth:`logits` (float64 ``[n, K]``)."""
        logits = self.logits(pixels, task).astype(np.float64)
        exponential = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponential / exponential.sum(axis=1, keepdims=True)

    def predict(self, pixels: np.ndarray, task: int, top: int = 5) -> list[Prediction]:
        """The ``top`` most probable classes of every image, which belongs to ``task``."""
        return self._ranked(self.probabilities(pixels, task), [task], top)

    def predict_each(self, pixels: np.ndarray, tasks: np.ndarray, top: int = 5) -> list[Prediction]:
        """The same where every image has a task of its own (integers ``[n]``)."""
        found: dict[int, Prediction] = {}
        for task in np.unique(tasks).tolist():
            rows = np.flatnonzero(tasks == task)
            found |= dict(zip(rows.tolist(), self.predict(pixels[rows], task, top), strict=True))
        return [found[row] for row in range(len(tasks))]

    def predict_any(self, pixels: np.ndarray, weights: np.ndarray, top: int = 5) -> list[Prediction]:
        """The most probable among the classes of all tasks.

        Args:
            weights: probability of every task for every image ``[n, T]``; a class has that of its task times that of
                the class in it.
        """
        tasks = range(len(self.stream.tasks))
        of_tasks = [weights[:, [task]] * self.probabilities(pixels, task) for task in tasks]
        return self._ranked(np.concatenate(of_tasks, axis=1), tasks, top)

    def predict_unnamed(self, pixels: np.ndarray, identifier: Identifier, how: str, top: int = 5) -> list[Prediction]:
        """The most probable classes of images whose task nobody names; ``how`` is one of :data:`UNNAMED`.

        ``auto`` takes for each image the task whose class prototypes are nearest; with ``any`` the classes of all tasks
        compete, by the probability of the task times that of the class in it.
        """
        if how == "auto":
            return self.predict_each(pixels, identifier.distances(pixels).argmin(axis=1), top)
        return self.predict_any(pixels, identifier.probabilities(pixels), top)

    def _ranked(self, probabilities: np.ndarray, tasks: Sequence[int], top: int) -> list[Prediction]:
        """The best of the classes of ``tasks``, one column each."""
        columns = [(task, name) for task in (self.stream.tasks[index] for index in tasks) for name in task.class_names]
        predictions = []
        for of_image in probabilities:
            order = np.argsort(-of_image, kind="stable")[:top].tolist()
            of_class, names = zip(*(columns[column] for column in order))
            predictions.append(Prediction(of_class, names, tuple(of_image[order].tolist())))
        return predictions


def find_task(stream: Stream, text: str) -> Task:
    """The task of that number or name.

    Raises:
        SourceError: there is none, or more than one has the name.
    """
    if text.isdecimal() and int(text) < len(stream.tasks):
        return stream.tasks[int(text)]
    named = [task for task in stream.tasks if task.name == text]
    if len(named) == 1:
        return named[0]
    if named:
        numbers = " and ".join(str(task.index) for task in named)
        raise SourceError(f"tasks {numbers} of {stream.name} are all called {text!r}; give the number.")
    known = listing([f"{task.index} ({task.name})" for task in stream.tasks], 20)
    raise SourceError(f"{stream.name} has no task {text!r}; its tasks are {known}.")
