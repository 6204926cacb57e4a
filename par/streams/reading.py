"""A data set in memory, and how named image files of a folder, zip or tar archive become its arrays."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import psutil

from par.files import sha256_bytes
from par.schema import bounded
from par.streams.pixels import Decoder, ImageError, Target

SPLITS = ("train", "test")
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class SourceError(ValueError):
    """A data set that cannot be used; the message, one line, says which, where it was looked for and what helps."""

    def __init__(self, message: str):
        super().__init__(bounded(message))


@dataclass(frozen=True)
class LeftAside:
    """Files of a data set that were not read for one ``reason``: how many, and the path of one of them."""

    reason: str
    count: int
    example: str


@dataclass(frozen=True)
class Source:
    """A data set in memory.

    ``images[split]`` is uint8 ``[n, H, W, 3]``, ``labels[split]`` int64 ``[n]`` into ``classes``; the splits are
    ``train`` and ``test``, and ``valid`` where the data set brings its own validation images. ``digest`` is the
    SHA-256 of the files it was read from. ``left_aside`` counts the files that were not read; ``notes`` are sentences
    about what had to be interpreted. ``squashed``: images were resized without keeping their aspect ratio.
    """

    name: str
    classes: tuple[str, ...]
    images: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]
    digest: str
    left_aside: tuple[LeftAside, ...] = ()
    notes: tuple[str, ...] = ()
    squashed: bool = False

    def rows(self, split: str, label: int) -> np.ndarray:
        """Positions of a class in a split, in the data set's own order (int64 ``[n]``)."""
        return np.flatnonzero(self.labels[split] == label)


@dataclass(frozen=True)
class Request:
    """What is asked for: a data set, the folder or zip that holds it, and how to treat images of unlike sizes.

    ``size``: images are resized to so many pixels as they are read (None: kept, and all must have one size). ``own``:
    the user has named the file, so no embedded data set is meant.
    """

    dataset: str
    file: str
    data_dir: Path
    size: int | None = None
    resample: str = "bilinear"
    own: bool = False


def printable(name: str) -> str:
    """A file's name on one line: control characters and bytes that are no UTF-8 are written out."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), name)


def leaves(name: str) -> bool:
    """Whether a path, as an archive or a list names it, is absolute or leads out of its folder."""
    parts = name.replace("\\", "/").split("/")
    return ".." in parts or (not parts[0] and len(parts) > 1) or parts[0].endswith(":")


def walk(place: Path, wanted: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    """Name and content of the ``wanted`` files of a folder, a zip or a tar archive, one after the other.

    A tar archive is read once from front to back, in its own order: seeking in a compressed one starts over.
    """
    wanted = dict.fromkeys(wanted)
    try:
        if outside := [name for name in wanted if leaves(name)]:
            raise SourceError(f"{place}: {outside[0]!r} is a path that leaves it; only files inside are read.")
        if place.is_dir():
            for name in wanted:
                yield name, (place / name).read_bytes()
        elif zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                for name in wanted:
                    yield name, archive.read(name)
        else:
            with tarfile.open(place) as archive:
                for member in archive:
                    if member.name in wanted:
                        del wanted[member.name]
                        file = archive.extractfile(member)
                        if file is None:
                            raise SourceError(f"{place}: {member.name} is no file; fetch the official archive again.")
                        yield member.name, file.read()
            if wanted:
                raise SourceError(f"{place} lacks {min(wanted)}; fetch the official archive again.")
    except SourceError:
        raise
    except Exception as error:  # zip, tar and zlib have a dozen error classes for damaged files
        raise SourceError(f"{place} cannot be read ({error}); copy or fetch it again.") from error


def read_images(
    place: Path,
    names: Sequence[str],
    request: Request,
    digest: hashlib._Hash,
    squash: bool = False,
    known_as: Mapping[str, str] = MappingProxyType({}),
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The named images of a folder or archive as uint8 ``[n, H, W, 3]``, and notes on what was interpreted.

    A name may be given more than once. The bytes of the images go into ``digest``, under the name that ``known_as``
    gives them, if any. ``squash`` resizes without keeping the aspect ratio.

    Raises:
        SourceError: a file is missing, no readable image, or its size is not that of the others.
    """
    row_of: dict[str, int] = {}
    repeated = [(row, row_of[name]) for row, name in enumerate(names) if row_of.setdefault(name, row) != row]
    decoder = Decoder(Target(request.size, request.resample, squash))
    images, first, file_digests = None, "", {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, content in walk(place, row_of):
            file_digests[known_as.get(name, name)] = sha256_bytes(content)
            shown = printable(name)
            try:
                image = decoder.decode(content, shown)
            except ImageError as error:
                raise SourceError(f"{place}: {shown} {error}.") from error
            if caught:
                decoder.warned(caught, shown)
                caught.clear()
            if images is None:
                images, first = _allocate(place, len(names), image.shape), shown
            if image.shape != images.shape[1:]:
                sizes = [f"{array.shape[-2]}x{array.shape[-3]}" for array in (image, images)]
                raise SourceError(
                    f"{place}: {shown} has {sizes[0]} pixels but {first} has {sizes[1]}; give all images one size, or "
                    f"set resize: true for {request.dataset} in the stream's definition."
                )
            images[row_of.pop(name)] = image
    if images is None or row_of:
        raise SourceError(f"{place} lacks {min(row_of, default='every image')}; copy or fetch it again.")
    for row, original in repeated:
        images[row] = images[original]
    digest.update(json.dumps(file_digests, sort_keys=True).encode())
    try:
        return images, decoder.notes()
    except ImageError as error:
        raise SourceError(f"{place}: {error}.") from error


def _allocate(place: Path, n: int, shape: Sequence[int]) -> np.ndarray:
    """Room for ``n`` images. The operating system grants more than there is, and stops the program later."""
    needed, available = n * int(np.prod(shape)), psutil.virtual_memory().available
    if needed > available:
        raise SourceError(
            f"{place}: {n} images of {shape[1]}x{shape[0]} pixels need {needed / 1e9:.1f} GB of memory, "
            f"{available / 1e9:.1f} GB are free; set resize: true and a smaller image_size, or use fewer images."
        )
    return np.empty((n, *shape), np.uint8)
