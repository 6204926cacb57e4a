"""A data set in memory, and how image files become one: folders, zips, tar archives, decoding."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from par.files import sha256_bytes
from par.streams.transforms import FILTERS, fit

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".gif", ".tif", ".tiff")
SPLITS = ("train", "test")


class SourceError(ValueError):
    """A data set that cannot be used; the message says which, where it was looked for and what helps."""


@dataclass(frozen=True)
class Source:
    """A data set in memory.

    ``images[split]`` is uint8 ``[n, H, W, 3]``, ``labels[split]`` int64 ``[n]`` into ``classes``; the splits are
    ``train`` and ``test``. ``digest`` is the SHA-256 of the files it was read from.
    """

    name: str
    classes: tuple[str, ...]
    images: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]
    digest: str

    def rows(self, split: str, label: int) -> np.ndarray:
        """Positions of a class in a split, in the data set's own order (int64 ``[n]``)."""
        return np.flatnonzero(self.labels[split] == label)


@dataclass(frozen=True)
class Request:
    """What is asked for: a data set, the folder or zip that holds it, and how to treat images of unlike sizes.

    ``size``: images are resized to so many pixels as they are read (None: kept, and all must have one size).
    """

    dataset: str
    file: str
    data_dir: Path
    size: int | None = None
    resample: str = "bilinear"


def walk(place: Path, wanted: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    """Name and content of the ``wanted`` files of a folder, a zip or a tar archive, one after the other.

    A tar archive is read once from front to back, in its own order: seeking in a compressed one starts over.
    """
    try:
        if place.is_dir():
            for name in wanted:
                yield name, (place / name).read_bytes()
        elif zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                for name in wanted:
                    yield name, archive.read(name)
        else:
            wanted = set(wanted)
            with tarfile.open(place) as archive:
                for member in archive:
                    if member.name in wanted:
                        wanted.remove(member.name)
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


def _image_names(place: Path) -> list[str]:
    """Names of everything in a folder or zip, folders with a closing slash."""
    if place.is_dir():
        paths = place.rglob("*")
        return [path.relative_to(place).as_posix() + ("/" if path.is_dir() else "") for path in paths]
    try:
        with zipfile.ZipFile(place) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise SourceError(f"{place} is no complete zip file ({error}); copy it again.") from error


def _decode(content: bytes, where: str, request: Request, squash: bool = False) -> np.ndarray:
    """One image as uint8 ``[H, W, 3]`` (grey is expanded); ``squash`` resizes without keeping the aspect ratio."""
    try:
        image = Image.open(io.BytesIO(content)).convert("RGB")
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        raise SourceError(f"{where} is no readable image ({error}); replace or remove that file.") from error
    if request.size is not None and squash:
        image = image.resize((request.size, request.size), FILTERS[request.resample])
    elif request.size is not None:
        image = fit(image, request.size, request.resample)
    return np.asarray(image)


def read_images(
    place: Path, names: Sequence[str], request: Request, digest: hashlib._Hash, squash: bool = False
) -> np.ndarray:
    """The named images of a folder or archive as uint8 ``[n, H, W, 3]``; their bytes go into ``digest``."""
    row_of = {name: row for row, name in enumerate(names)}
    images, first, file_digests = None, "", {}
    for name, content in walk(place, names):
        file_digests[name] = sha256_bytes(content)
        image = _decode(content, f"{place}: {name}", request, squash)
        if images is None:
            images, first = np.empty((len(names), *image.shape), np.uint8), name
        if image.shape != images.shape[1:]:
            sizes = [f"{array.shape[-2]}x{array.shape[-3]}" for array in (image, images)]
            raise SourceError(
                f"{place}: {name} has {sizes[0]} pixels but {first} has {sizes[1]}; give all images one size, or set "
                f"resize: true for {request.dataset} in the stream's definition."
            )
        images[row_of[name]] = image
    if images is None:
        raise SourceError(f"{place} lacks every image; copy or fetch it again.")
    digest.update(json.dumps(file_digests, sort_keys=True).encode())
    return images


def holds_splits(place: Path) -> bool:
    return (place / "train").is_dir()


def image_folder(request: Request, place: Path) -> Source:
    """A folder or zip laid out ``<split>/<class>/<image>``; classes and images in alphabetical order."""
    names: dict[str, dict[str, list[str]]] = {split: defaultdict(list) for split in SPLITS}
    for name in sorted(_image_names(place)):
        parts = name.split("/")
        if len(parts) != 3 or parts[0] not in SPLITS or not parts[1] or parts[1].startswith("."):
            continue
        images = names[parts[0]][parts[1]]  # an empty folder counts as a class, to be refused below
        if parts[2].lower().endswith(IMAGE_SUFFIXES) and not parts[2].startswith("."):
            images.append(name)
    for split in SPLITS:
        if not names[split]:
            raise SourceError(f"{place} holds no {split}/<class>/<image>; lay it out <split>/<class>/<image>.")
        for label, images in names[split].items():
            if not images:
                raise SourceError(f"{place}: {split}/{label} holds no image; add images or remove the folder.")
    for here, there in (SPLITS, SPLITS[::-1]):
        if only := sorted(set(names[here]) - set(names[there])):
            message = f"{here}/ has the class {only[0]!r} but {there}/ has not; both need every class"
            raise SourceError(f"{place}: {message}.")
    classes = tuple(sorted(names["train"]))
    digest = hashlib.sha256()
    ordered = {split: [name for label in classes for name in names[split][label]] for split in SPLITS}
    pixels = read_images(place, ordered["train"] + ordered["test"], request, digest)
    pixels_of = dict(zip(SPLITS, np.split(pixels, [len(ordered["train"])])))
    counts = {split: [len(names[split][label]) for label in classes] for split in SPLITS}
    labels = {split: np.repeat(np.arange(len(classes)), counts[split]) for split in SPLITS}
    return Source(request.file, classes, pixels_of, labels, digest.hexdigest())
