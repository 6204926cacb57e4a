"""Image files, folders and zips as a built stream would have read them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from par.streams import SourceError, Task
from par.streams.folders import pictures
from par.streams.pixels import Decoder, ImageError, Target, tally
from par.streams.reading import LeftAside, printable, walk


class PictureReader:
    """Reads images by the rules of ``docs/images.md`` and brings them to the size of a stream's images.

    What cannot be read is left out and kept in ``unreadable`` (name -> what is wrong with it), files that are no images
    in ``left_aside``; :meth:`notes` says what was interpreted.

    Args:
        size: height and width of the stream's images. Where they differ, as in a stream that keeps the sizes of its
            sources, no rule says how to crop, and images of another size are unreadable.
        target: how images of another size are resized, see :attr:`par.streams.Task.target`.
    """

    def __init__(self, size: tuple[int, int], target: Target):
        self._size = size
        self._decoder = Decoder(target)
        self.unreadable: dict[str, str] = {}
        self.left_aside: list[LeftAside] = []

    def read(self, places: Sequence[Path]) -> Iterator[tuple[str, np.ndarray]]:
        """Path and pixels (uint8 ``[3, H, W]``) of every readable image of the files, folders and zips.

        Raises:
            SourceError: a place does not exist, holds no image or is damaged as a whole.
        """
        for place in places:
            folder, names, prefix = self._contents(place)
            for name, content in walk(folder, names):
                shown = printable(f"{prefix}{name}")
                if (image := self.decode(content, shown)) is not None:
                    yield shown, image

    def decode(self, content: bytes, name: str) -> np.ndarray | None:
        """One image file as uint8 ``[3, H, W]``; None if it is unreadable."""
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                image = self._decoder.decode(content, name)
            self._decoder.warned(caught, name)
            if image.shape[:2] != self._size:
                found, wanted = (f"{width}x{height}" for height, width in (image.shape[:2], self._size))
                raise ImageError(f"has {found} pixels, the images of the stream have {wanted}; crop it")
        except ImageError as error:
            self.unreadable[name] = str(error)
            return None
        return image.transpose(2, 0, 1)

    def notes(self) -> list[str]:
        """Sentences about what was left aside, could not be read or was interpreted.

        Raises:
            SourceError: images that are readable one by one do not fit together, so that none can be trusted.
        """
        try:
            interpreted = self._decoder.notes()
        except ImageError as error:
            raise SourceError(f"{error}.") from error
        aside = [tally(one.count, "file", f"not read, {one.reason}", one.example) for one in self.left_aside]
        reasons = Counter(self.unreadable.values())
        of_reason = {reason: name for name, reason in reversed(self.unreadable.items())}
        unreadable = [
            f"{count} file{'s' if count > 1 else ''} could not be read: {of_reason[reason]} {reason}."
            for reason, count in reasons.items()
        ]
        return [*unreadable, *aside, *interpreted]

    def _contents(self, place: Path) -> tuple[Path, list[str], str]:
        """The folder or archive to read, the names in it, and what goes before them to make a path."""
        if not place.exists():
            raise SourceError(f"{place} does not exist; give an image, a folder or a zip.")
        if place.is_file() and place.suffix.lower() != ".zip":
            return place.parent, [place.name], "" if place.parent == Path() else f"{place.parent}/"
        names, aside = pictures(place)
        self.left_aside += aside
        if not names:
            found = "; ".join(f"{one.count} files: {one.reason}" for one in aside) or "nothing"
            raise SourceError(f"{place} holds no image that can be read; it holds {found}.")
        return place, names, f"{place}/"


def differences(tasks: Sequence[Task]) -> list[str]:
    """Sentences about what was done to images of the tasks and is not done to others, resized as the first task's."""
    notes = []
    rules = list(dict.fromkeys(task.target for task in tasks))
    if len(rules) > 1:
        notes.append(f"The tasks were resized unlike ({'; '.join(map(str, rules))}); yours are by the first rule.")
    for task in tasks:
        if task.transform and task.transform != "labels rotated by one":
            notes.append(f"Task {task.index} was learned on images with {task.transform}; yours are taken as they are.")
    return notes
