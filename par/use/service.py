"""A learner that answers requests: images as base64 texts, each with the task it belongs to.

A folder is all it needs: ``card.json`` (:func:`par.use.card.run_card`), ``model.pt``, the run's, and, where tasks need
not be named, ``tasks.npz`` (:class:`par.use.identifier.Identity`) and the weights of the extractor that this describes.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from par.config import ExtractorSettings
from par.files import read_json
from par.schema import ConfigError
from par.settings import from_plain
from par.streams import SourceError, Task
from par.use.card import described_stream
from par.use.identifier import Identifier, Identity, extractor_like
from par.use.pictures import PictureReader
from par.use.predictor import UNNAMED, Prediction, Predictor, find_task

MAX_BYTES = 32 * 2**20  # of one image file
MAX_IMAGES = 1024  # of one request


class RequestError(ValueError):
    """A request that cannot be answered, in one sentence."""


class Service:
    """The learner in such a folder. One request at a time: the image decoder is not for threads."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu"):
        card = read_json(folder / "card.json")
        chains = torch.load(folder / "model.pt", weights_only=True, map_location="cpu")
        settings = from_plain(card["learner"], f"{folder}/card.json")
        self._predictor = Predictor(described_stream(card), settings, chains, device)
        tasks = folder / "tasks.npz"
        self._identity = Identity.read(tasks) if tasks.is_file() else None
        self._identifier: Identifier | None = None
        self._lock = threading.Lock()

    def answer(self, images: Sequence[Any], tasks: Sequence[Any]) -> list[Prediction]:
        """The five most probable classes of every image.

        Args:
            images: image files as base64 texts.
            tasks: for each the number or the name of its task, or ``auto`` or ``any`` as
                :meth:`Predictor.predict_unnamed` has it; an empty text and None mean ``auto``.

        Raises:
            RequestError: too many or too large images, one that is none, an unknown task, or one that is not named
                where nothing is known to tell it by.
        """
        if len(images) > MAX_IMAGES:
            raise RequestError(f"the request has {len(images)} images; at most {MAX_IMAGES} are answered at once.")
        with self._lock:
            names = ["auto" if task is None or task == "" else str(task) for task in tasks]
            found = [self._task(name) for name in names]
            pixels = [self._pixels(image, row, task) for row, (image, task) in enumerate(zip(images, found))]
            rows: dict[str, list[int]] = defaultdict(list)
            for row, name in enumerate(names):
                rows[name if name in UNNAMED else "named"].append(row)
            answers: dict[int, Prediction] = {}
            for how, members in rows.items():
                of_rows = np.stack([pixels[row] for row in members])
                if how == "named":
                    numbers = np.array([found[row].index for row in members], np.int64)
                    predictions = self._predictor.predict_each(of_rows, numbers)
                else:
                    predictions = self._predictor.predict_unnamed(of_rows, self._known_identifier(), how)
                answers |= dict(zip(members, predictions, strict=True))
            return [answers[row] for row in range(len(names))]

    def _task(self, name: str) -> Task:
        """The task of that number or name; the first one, as whose images others are resized, where it is not known."""
        if name in UNNAMED:
            return self._predictor.stream.tasks[0]
        try:
            return find_task(self._predictor.stream, name)
        except SourceError as error:
            raise RequestError(f"{str(error).rstrip('.')}; say auto or any where nobody knows it.") from None

    def _known_identifier(self) -> Identifier:
        """The extractor is loaded when it is first needed: most requests name their tasks."""
        if self._identity is None:
            raise RequestError("this model holds nothing to tell tasks by; give each image's task.")
        if self._identifier is None:
            meta, weights = self._identity.extractor, self._identity.weights
            try:
                extractor = extractor_like(meta, ExtractorSettings(meta["name"], weights), self._predictor.device, "it")
            except (ConfigError, SourceError) as error:
                raise RequestError(f"tasks cannot be told here, give each image's task: {error}") from None
            self._identifier = Identifier(extractor, self._identity)
        return self._identifier

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
