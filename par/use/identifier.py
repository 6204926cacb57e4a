"""Which task of a stream an image belongs to, where nobody says it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import torch

from par.config import ExtractorSettings
from par.relatedness import identification
from par.relatedness.extractor import Extractor, load_extractor
from par.relatedness.prototypes import Prototypes
from par.streams import SourceError


def extractor_of(features: Path, settings: ExtractorSettings, device: torch.device | str = "cpu") -> Extractor:
    """The extractor that made a features file; ``settings`` say where its weights lie.

    Raises:
        SourceError: the file is missing, or the weights at hand are others.
    """
    if not features.is_file():
        raise SourceError(f"{features} does not exist; run the pipeline up to its stage extract first (dvc repro).")
    with np.load(features) as archive:
        meta = json.loads(str(archive["meta"]))
    same = dataclasses.replace(settings, network=meta["name"], image_size=meta["image_size"])
    if settings.network not in ("auto", meta["name"]):
        same = dataclasses.replace(same, weights=None)  # a file for another network
    extractor = load_extractor(same, device)
    if extractor.describe() != meta:
        raise SourceError(
            f"{features} was made with other weights of {meta['name']} (sha256 {meta['digest'][:12]}, here "
            f"{extractor.digest[:12]}); set extractor.weights to that file or run the pipeline again."
        )
    return extractor


def load_prototypes(path: Path, seed: int, n_tasks: int, split: str) -> list[Prototypes]:
    """The prototypes of one seed's tasks on a split.

    Raises:
        SourceError: the file is missing or lacks them.
    """
    if not path.is_file():
        raise SourceError(f"{path} does not exist; run the pipeline up to its stage prototypes first (dvc repro).")
    with np.load(path) as archive:
        names = [f"{seed}/{task}/{split}" for task in range(n_tasks)]
        if missing := [name for name in names if f"{name}/means" not in archive]:
            raise SourceError(f"{path} holds no {missing[0]}; run the pipeline with this seed and split.")
        return [Prototypes(archive[f"{name}/means"], archive[f"{name}/counts"]) for name in names]


class Identifier:
    """Tells the task of an image by the nearest class prototype in the frozen extractor's features.

    Args:
        extractor: the one that made ``features``.
        features, prototypes: ``data/features/<stream>.npz`` and ``data/prototypes/<stream>.npz``.
        seed, n_tasks: of the built stream. split: whose prototypes count.
    """

    def __init__(self, extractor: Extractor, features: Path, prototypes: Path, seed: int, n_tasks: int, split: str):
        self.extractor = extractor
        self.prototypes = load_prototypes(prototypes, seed, n_tasks, split)
        held_out, tasks = [], []
        with np.load(features) as archive:
            for task in range(n_tasks):
                of_task, labels = (archive[f"{seed}/{task}/{split}/{kind}"] for kind in ("features", "labels"))
                distances = identification.held_out_distances(of_task, labels, task, self.prototypes)
                usable = np.isfinite(distances).all(axis=1)
                held_out.append(distances[usable])
                tasks.append(np.full(int(usable.sum()), task))
        self.temperature = identification.fit_temperature(np.concatenate(held_out), np.concatenate(tasks))

    def distances(self, pixels: np.ndarray) -> np.ndarray:
        """Squared distance of images (uint8 ``[n, 3, H, W]``) to the nearest prototype of every task ``[n, T]``."""
        return identification.task_distances(self.extractor.features(pixels), self.prototypes)

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """Probability of every task (float64 ``[n, T]``), its temperature fitted to the validation images."""
        return identification.task_probabilities(self.distances(pixels), self.temperature)
