"""Every data set, as uint8 RGB images with labels.

A data set is looked for in this order, and one :class:`SourceError` names all of it when nothing is found:

1. inside an installed package (the embedded data sets: no download), unless the stream names a ``file``,
2. an image folder or zip ``<data_dir>/<file>[.zip]`` laid out ``<split>/<class>/<image>``,
3. the official archive, or torchvision's own layout, in ``<data_dir>``,
4. torchvision's checksummed download into ``<data_dir>``.

A stream that names a ``file`` of another name than the data set's means that one: 3 and 4 do not do.

Sources are decoded once per process: a stage builds all its seeds from one copy in memory.
"""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import numpy as np

from par.streams.embedded import EMBEDDED
from par.streams.folders import holds_splits, image_folder
from par.streams.official import GTSRB_PARTS, OFFICIAL, STAND_INS, Official
from par.streams.reading import Request, Source, SourceError

__all__ = ["Request", "Source", "SourceError", "load_source"]


def load_source(request: Request) -> Source:
    """The data set that ``request`` names.

    Raises:
        SourceError: it is nowhere to be found, damaged, or its images do not fit together.
    """
    if request.dataset in EMBEDDED and not request.own:
        return _embedded(request.dataset)
    return _from_disk(request)


@functools.cache
def _embedded(dataset: str) -> Source:
    return EMBEDDED[dataset]()


@functools.lru_cache(maxsize=8)  # the largest stream, S_long, draws from five
def _from_disk(request: Request) -> Source:
    place = own_place(request.file, request.data_dir)
    if place is not None:
        return image_folder(request, place)
    official = official_of(request.dataset, request.file)
    if official is None:
        if (folder := request.data_dir / request.file).is_dir():
            return image_folder(request, folder)  # which says what it holds instead of splits
        what = "it" if request.file == request.dataset else f"the stream asks for {request.file}, which"
        raise _not_found(request, None, f"{what} has no official archive that this program knows")
    if not official.present(request.data_dir):
        if official.download is None:
            raise _not_found(request, official, "it has no download")
        _download(request, official)
    return _read_official(request, official)


def _read_official(request: Request, official: Official) -> Source:
    """The data set in its official files, which anybody can have put there.

    Raises:
        SourceError: they are not what they should be, or their images and labels do not go together.
    """
    again = f"fetch {official.files} again"
    try:
        source = official.read(request)
    except SourceError:
        raise
    except Exception as error:  # damaged arrays, tables and archives break their readers in many ways
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise SourceError(
            f"Data set {request.dataset!r} in {request.data_dir} cannot be read ({words:.300}); {again}."
        ) from error
    for split, images in source.images.items():
        labels, n_classes = source.labels[split], len(source.classes)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or not len(images):
            found = f"{split} images of the type {images.dtype} and the shape {images.shape}"
        elif labels.shape != (len(images),) or not ((labels >= 0) & (labels < n_classes)).all():
            found = f"{len(images)} {split} images and labels for {labels.size} that do not fit its {n_classes} classes"
        else:
            continue
        raise SourceError(f"Data set {request.dataset!r} in {request.data_dir} has {found}; {again}.")
    return source


def own_place(file: str, data_dir: Path) -> Path | None:
    """The image folder or zip of that name, which is read rather than official files; None where there is neither.

    Raises:
        SourceError: there are several zips, whose names differ in the case of their suffix alone.
    """
    place = data_dir / file
    torchvisions = (place / GTSRB_PARTS[0]).is_dir()  # a part of its folder gtsrb/ is named like a split
    if place.exists() if place.suffix.lower() == ".zip" else holds_splits(place) and not torchvisions:
        return place
    found = zips(file, data_dir)
    if len(found) > 1:
        raise SourceError(f"{data_dir} holds {' and '.join(path.name for path in found)}; keep one of them.")
    return found[0] if found else None


def zips(file: str, data_dir: Path) -> list[Path]:
    """``<data_dir>/<file>.zip``, with the suffix in any case."""
    wanted = data_dir / f"{file}.zip"
    if not wanted.parent.is_dir():
        return []
    inside = (path for path in wanted.parent.iterdir() if path.stem == wanted.stem and path.suffix.lower() == ".zip")
    return sorted(path for path in inside if path.exists())


def official_of(dataset: str, file: str) -> Official | None:
    """The official files that do for a data set which a stream asks for as ``file``, if any."""
    return OFFICIAL.get(dataset) if file == dataset else None


def _not_found(request: Request, official: Official | None, why: str) -> SourceError:
    looked_for = f"the image folder {request.file}/ or {request.file}.zip with <split>/<class>/<image>"
    remedies = [f"put {request.file}.zip (train/<class>/<image>, test/<class>/<image>) there"]
    if request.file in STAND_INS:
        remedies.append(f"`python -m par.streams.stand_ins {request.file}` cuts it from the official images")
    if official is not None:
        looked_for += f", {official.files}"
        remedies.append(f"put {official.files} there")
    remedies.append("set data_dir to the folder that holds it")
    if official is not None and official.download is not None:
        remedies.append("run once on a machine with internet access")
    missing = "" if request.data_dir.is_dir() else ", which does not exist"
    return SourceError(
        f"Data set {request.dataset!r} was not found: looked for {looked_for} in {request.data_dir}{missing}; {why}. "
        f"Remedies: {'; '.join(remedies)}."
    )


def _download(request: Request, official: Official) -> None:
    """Let torchvision download into a temporary folder, then move what came into ``data_dir``.

    A file that lies there already stays: it is the user's, or another checkout's that downloads at the same time.
    """
    assert official.download is not None
    anchor = next(path for path in (request.data_dir, *request.data_dir.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".download.", dir=anchor) as draft:
            official.download(Path(draft))
            request.data_dir.mkdir(parents=True, exist_ok=True)
            for path in sorted(path for path in Path(draft).rglob("*") if path.is_file()):
                place = request.data_dir / path.relative_to(draft)
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.exists():
                    os.replace(path, place)
    except (OSError, RuntimeError) as error:
        raise _not_found(request, official, f"its download failed ({' '.join(str(error).split())})") from error
