"""A learner that answers requests: images as base64 texts, each with the task it belongs to.

A folder is all it needs: ``card.json`` (:func:`par.use.export.describe_learner`) and ``model.pt``.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from par.files import read_json, write_json, write_tensors
from par.settings import from_plain
from par.streams import SourceError, Task
from par.use.export import describe_learner, described_stream
from par.use.pictures import PictureReader
from par.use.predictor import Prediction, Predictor, find_task

MAX_BYTES = 32 * 2**20  # of one image file
MAX_IMAGES = 1024  # of one request


class RequestError(ValueError):
    """A request that cannot be answered, in one sentence."""


def write_service(predictor: Predictor, folder: Path, accuracies: Sequence[float] | None = None) -> None:
    """Write what :class:`Service` reads."""
    write_json(folder / "card.json", describe_learner(predictor, accuracies))
    write_tensors(folder / "model.pt", list(predictor.chains))


class Service:
    """The learner in a folder of :func:`write_service`. One request at a time: the image decoder is not for threads."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu"):
        card = read_json(folder / "card.json")
        chains = torch.load(folder / "model.pt", weights_only=True, map_location="cpu")
        settings = from_plain(card["learner"], f"{folder}/card.json")
        self._predictor = Predictor(described_stream(card), settings, chains, device)
        self._lock = threading.Lock()

    def answer(self, images: Sequence[Any], tasks: Sequence[Any]) -> list[Prediction]:
        """The five most probable classes of every image.

        Args:
            images: image files as base64 texts.
            tasks: for each the number or the name of its task.

        Raises:
            RequestError: too many or too large images, one that is none, or an unknown task.
        """
        if len(images) > MAX_IMAGES:
            raise RequestError(f"the request has {len(images)} images; at most {MAX_IMAGES} are answered at once.")
        with self._lock:
            found = [self._task(task) for task in tasks]
            pixels = [self._pixels(image, row, task) for row, (image, task) in enumerate(zip(images, found))]
            numbers = np.array([task.index for task in found], np.int64)
            return self._predictor.predict_each(np.stack(pixels), numbers) if pixels else []

    def _task(self, name: Any) -> Task:
        try:
            return find_task(self._predictor.stream, str(name))
        except SourceError as error:
            raise RequestError(str(error)) from None

    def _pixels(self, image: Any, row: int, task: Task) -> np.ndarray:
        if not isinstance(image, str):
            raise RequestError(f"image {row} is no text; send the file's bytes as base64.")
        if 3 * len(image) > 4 * MAX_BYTES:
            raise RequestError(f"image {row} has over {MAX_BYTES // 2**20} MiB; send a smaller file.")
        try:
            content = base64.b64decode(image, validate=True)
        except binascii.Error as error:
            raise RequestError(f"image {row} is no base64 text ({error}); send the file's bytes as base64.") from None
        reader = PictureReader(task.image_size, task.target)
        pixels = reader.decode(content, f"image {row}")
        if pixels is None:
            raise RequestError(f"image {row} {reader.unreadable[f'image {row}']}.")
        return pixels
