"""Which task of a stream an image belongs to, where nobody says it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from par.config import ExtractorSettings
from par.files import write_npz
from par.relatedness import identification
from par.relatedness.extractor import Extractor, load_extractor
from par.relatedness.prototypes import Prototypes
from par.streams import SourceError

if TYPE_CHECKING:
    import torch


def extractor_of(features: Path, settings: ExtractorSettings, device: torch.device | str = "cpu") -> Extractor:
    """The extractor that made a features file; ``settings`` say where its weights lie.

    Raises:
        SourceError: the file is missing, or the weights at hand are others.
    """
    return extractor_like(_extractor_meta(features), settings, device, str(features))


def extractor_like(
    meta: Mapping[str, Any], settings: ExtractorSettings, device: torch.device | str, user: str
) -> Extractor:
    """The extractor that describes itself as ``meta``; ``settings`` say where its weights lie, ``user`` needs it.

    Raises:
        SourceError: the weights at hand are others.
        ConfigError: there are no weights.
    """
    same = dataclasses.replace(settings, network=meta["name"], image_size=meta["image_size"])
    if settings.network not in ("auto", meta["name"]):
        same = dataclasses.replace(same, weights=None)  # a file for another network
    extractor = load_extractor(same, device)
    if extractor.describe() != meta:
        raise SourceError(
            f"{user} was made with other weights of {meta['name']} (sha256 {meta['digest'][:12]}, here "
            f"{extractor.digest[:12]}); set extractor.weights to that file or run the pipeline again."
        )
    return extractor


def _extractor_meta(features: Path) -> dict[str, Any]:
    if not features.is_file():
        raise SourceError(f"{features} does not exist; run the pipeline up to its stage extract first (dvc repro).")
    with np.load(features) as archive:
        meta: dict[str, Any] = json.loads(str(archive["meta"]))
    return meta


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


@dataclass(frozen=True)
class Identity:
    """What the tasks of a stream are told by: their class prototypes and which extractor's features these are in.

    ``extractor`` is :meth:`Extractor.describe` of it, ``weights`` the file that params.yaml named for it, if any.
    ``temperature`` is that of the tasks' probabilities, fitted to the validation images.
    """

    prototypes: tuple[Prototypes, ...]
    temperature: float
    extractor: Mapping[str, Any]
    weights: str | None = None

    @classmethod
    def of_stream(
        cls, features: Path, prototypes: Path, seed: int, n_tasks: int, split: str, weights: str | None = None
    ) -> Identity:
        """The identity of a stream's tasks.

        Args:
            features, prototypes: ``data/features/<stream>.npz`` and ``data/prototypes/<stream>.npz``.
            seed, n_tasks: of the built stream. split: whose prototypes count.

        Raises:
            SourceError: a file is missing, or lacks the seed or the split.
        """
        meta, known = _extractor_meta(features), load_prototypes(prototypes, seed, n_tasks, split)
        held_out, tasks = [], []
        with np.load(features) as archive:
            for task in range(n_tasks):
                of_task, labels = (archive[f"{seed}/{task}/{split}/{kind}"] for kind in ("features", "labels"))
                distances = identification.held_out_distances(of_task, labels, task, known)
                usable = np.isfinite(distances).all(axis=1)
                held_out.append(distances[usable])
                tasks.append(np.full(int(usable.sum()), task))
        temperature = identification.fit_temperature(np.concatenate(held_out), np.concatenate(tasks))
        return cls(tuple(known), temperature, meta, weights)

    def write(self, path: Path) -> None:
        """Write it as one ``.npz``."""
        arrays = {f"{task}/means": of_task.means for task, of_task in enumerate(self.prototypes)}
        arrays |= {f"{task}/counts": of_task.counts for task, of_task in enumerate(self.prototypes)}
        meta = {"temperature": self.temperature, "extractor": dict(self.extractor), "weights": self.weights}
        write_npz(path, arrays | {"meta": np.array(json.dumps(meta, sort_keys=True))})

    @classmethod
    def read(cls, path: Path) -> Identity:
        """What :meth:`write` wrote."""
        with np.load(path) as archive:
            meta, n_tasks = json.loads(str(archive["meta"])), len(archive.files) // 2
            known = [Prototypes(archive[f"{task}/means"], archive[f"{task}/counts"]) for task in range(n_tasks)]
        return cls(tuple(known), **meta)


class Identifier:
    """Tells the task of an image by the nearest class prototype in the frozen extractor's features.

    Args:
        extractor: the one that ``identity`` describes.
    """

    def __init__(self, extractor: Extractor, identity: Identity):
        self._extractor, self._identity = extractor, identity

    def distances(self, pixels: np.ndarray) -> np.ndarray:
        """Squared distance of images (uint8 ``[n, 3, H, W]``) to the nearest prototype of every task ``[n, T]``."""
        return identification.task_distances(self._extractor.features(pixels), self._identity.prototypes)

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """Probability of every task (float64 ``[n, T]``), its temperature fitted to the validation images."""
        return identification.task_probabilities(self.distances(pixels), self._identity.temperature)
