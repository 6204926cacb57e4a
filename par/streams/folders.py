"""Image folders and zips laid out ``<split>/<class>/<image>``: what is read, and what is left aside for which reason.

``docs/images.md`` says the same to users.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import unicodedata
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from par.streams.pixels import SUFFIXES, tally
from par.streams.reading import SPLITS, LeftAside, Request, Source, SourceError, leaves, printable, read_images

SPLIT_OF = {  # by the name of a folder in lower case
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "valid"),
}
USUAL = {"train": "train", "test": "test", "valid": "val"}
OF_THE_SYSTEM = {"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "icon\r"}
PICTURES_NOT_READ = {".heic", ".heif", ".jxl", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".pdf", ".eps", ".wmf"}
MASK_ENDINGS = ("_mask", "-mask", "_seg", "_segmentation", "_label", "_gt")
MAX_BYTES = 2**30  # of one image file: 64 megapixels of four uncompressed 16-bit channels are half of it

NOT_AN_IMAGE = "not an image"
NOT_READ = "a picture format that is not read"
HIDDEN = "hidden, or of the operating system"
OUTSIDE = "beside train/, test/ and val/"
LOOSE = "beside the classes"
DEEPER = "deeper than <split>/<class>/<image>"
LINKED = "linked folder not followed"
ESCAPES = "its path leaves the zip"
OVERWRITTEN = "the same name again in the zip, of which the last one counts"


class File(NamedTuple):
    """A file of a folder or zip: its name there, its path in equal form, its size, and why it cannot be read."""

    name: str
    parts: tuple[str, ...]
    size: int
    reason: str = ""


@dataclass
class Content:
    """Everything that a folder or zip holds. ``folders`` are paths, ``links`` names of linked folders."""

    files: list[File] = field(default_factory=list)
    folders: set[tuple[str, ...]] = field(default_factory=set)
    links: list[str] = field(default_factory=list)


@functools.lru_cache(maxsize=1024)  # the files of a folder share the parts of its path
def _folder_parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in unicodedata.normalize("NFC", path).split("/") if part not in ("", "."))


def _parts(name: str) -> tuple[str, ...]:
    """A path by its parts: split at slashes and backslashes, none empty or a dot, letters composed (NFC)."""
    folder, _, last = name.replace("\\", "/").rpartition("/")
    parts = _folder_parts(folder)
    return parts if last in ("", ".") else (*parts, unicodedata.normalize("NFC", last))


def _list_folder(place: Path) -> Content:
    content = Content()
    pending: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(place),))]
    while pending:
        folder, above = pending.pop()
        with os.scandir(place / folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = f"{folder}/{entry.name}" if folder else entry.name
                if not entry.is_dir():
                    content.files.append(_file_of(name, entry))
                elif not entry.is_symlink():
                    content.folders.add(_parts(name))
                    pending.append((name, (*above, os.path.realpath(place / name))))
                elif _is_below_classes(parts := _parts(name)) or any(map(_is_hidden, parts)):
                    content.files.append(File(name, parts, 0, LINKED))
                else:
                    target = os.path.realpath(place / name)
                    if target in above:
                        raise SourceError(f"{place}: {name} links to a folder that contains it; remove the link.")
                    content.folders.add(parts)
                    content.links.append(name)
                    pending.append((name, (*above, target)))
    return content


def _file_of(name: str, entry: os.DirEntry[str]) -> File:
    try:
        status = entry.stat()
    except OSError:
        return File(name, _parts(name), 0, "link to nothing")
    return File(name, _parts(name), status.st_size, "" if stat.S_ISREG(status.st_mode) else "no regular file")


def _list_zip(place: Path) -> Content:
    content = Content()
    try:
        with zipfile.ZipFile(place) as archive:
            members = archive.infolist()
    except Exception as error:  # BadZipFile, OSError, NotImplementedError (a version), struct.error, ...
        raise SourceError(f"{place} is no complete zip file ({error}); copy it again.") from error
    last = {member.filename: member for member in members}
    for member in members:
        name, parts = member.filename, _parts(member.filename) or (member.filename,)
        if name.endswith(("/", "\\")):
            if not leaves(name):
                content.folders.add(parts)
        elif leaves(name):
            content.files.append(File(name, parts, 0, ESCAPES))
        elif last[name] is not member:
            content.files.append(File(name, parts, 0, OVERWRITTEN))
        elif stat.S_ISLNK(member.external_attr >> 16):
            content.files.append(File(name, parts, 0, "link in a zip"))
        elif member.flag_bits & 1:
            raise SourceError(f"{place} is encrypted ({name}); unpack it with its password and use the folder.")
        else:
            content.files.append(File(name, parts, member.file_size))
    return content


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part.lower() in OF_THE_SYSTEM


def _is_below_classes(folder: tuple[str, ...]) -> bool:
    return len(folder) > (2 if folder[0].lower() in SPLIT_OF else 3)


def _suffix(file: File) -> str:
    return os.path.splitext(file.parts[-1])[1].lower()


def _top(folders: Iterable[tuple[str, ...]], place: Path) -> tuple[str, ...]:
    """The folder that holds the splits: () for the first level, else the only folder there that has some."""
    holders = {path[:-1] for path in folders if len(path) <= 2 and path[-1].lower() in SPLIT_OF}
    holders = {path for path in holders if not any(map(_is_hidden, path))}
    if not holders or () in holders:
        return ()
    if len(holders) > 1:
        names = " and ".join(f"{path[0]}/" for path in sorted(holders)[:2])
        raise SourceError(f"{place} holds splits in {names}; give each data set a folder or zip of its own.")
    return holders.pop()


def holds_splits(place: Path) -> bool:
    """Whether a folder looks like an image folder: it, or a folder in it, has one named like a training split."""
    try:
        inside = [path for path in place.iterdir() if path.is_dir() and not _is_hidden(path.name)]
        for folder in (place, *inside):
            if any(SPLIT_OF.get(path.name.lower()) == "train" and path.is_dir() for path in folder.iterdir()):
                return True
    except FileNotFoundError:
        return False
    except OSError:  # left to image_folder, which says what cannot be read
        return place.is_dir()
    return False


@dataclass
class _Layout:
    """Files sorted into ``members[split][class]``; the others into ``aside``, by reason."""

    names: Mapping[str, str]  # of the splits' folders
    members: Mapping[str, dict[str, list[File]]]
    aside: Mapping[str, list[str]]


def _arrange(content: Content, place: Path) -> tuple[_Layout, tuple[str, ...]]:
    """Every file in one class of one split or left aside, and the names of the folders above the splits."""
    top = _top(content.folders, place)
    depth = len(top)
    names: dict[str, str] = {}
    classes: dict[str, dict[str, list[File]]] = {}
    for path in sorted(content.folders):
        if path[:depth] != top or not depth < len(path) <= depth + 2 or any(map(_is_hidden, path)):
            continue
        if (split := SPLIT_OF.get(path[depth].lower())) is None:
            continue
        if names.setdefault(split, path[depth]) != path[depth]:
            raise SourceError(f"{place} holds both {names[split]}/ and {path[depth]}/; put them into one folder.")
        of_split = classes.setdefault(split, {})
        if len(path) == depth + 2:
            of_split[path[-1]] = []
    aside: dict[str, list[str]] = defaultdict(list)
    for file in content.files:
        inside = file.parts[:depth] == top and len(file.parts) > depth
        split = SPLIT_OF.get(file.parts[depth].lower(), "") if inside else ""
        if reason := _reason(file, split, len(file.parts) - depth):
            aside[reason].append(file.name)
        else:
            classes[split][file.parts[-2]].append(file)
    return _Layout(names, classes, aside), top


def _reason(file: File, split: str, depth: int) -> str:
    """Why a file is left aside ('' if it is read); ``depth`` counts from the folder that holds the splits."""
    if file.reason:
        return file.reason
    if any(map(_is_hidden, file.parts)):
        return HIDDEN
    suffix = _suffix(file)
    if suffix not in SUFFIXES:
        return NOT_READ if suffix in PICTURES_NOT_READ else NOT_AN_IMAGE
    if not split or depth < 2:
        return OUTSIDE
    return "" if depth == 3 else LOOSE if depth == 2 else DEEPER


def _holds(files: Sequence[File], depth: int) -> str:
    """What lies in a folder, in words: its names at ``depth`` and its files by suffix."""
    if not files:
        return "nothing"
    found = Counter(_suffix(file) or "without suffix" for file in files)
    suffixes = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    names = sorted({file.parts[depth] + ("/" if len(file.parts) > depth + 1 else "") for file in files})
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in suffixes[:5]) + (", ..." if len(suffixes) > 5 else "")
    plural = "s" if len(files) > 1 else ""
    return f"{len(files)} file{plural} ({kinds}): {', '.join(names[:5])}" + (", ..." if len(names) > 5 else "")


def _check(layout: _Layout, content: Content, top: tuple[str, ...], place: Path) -> None:
    """Every split has every class, and every class an image."""
    for split in SPLITS:
        if not layout.members.get(split):
            raise SourceError(
                f"{place} holds no {split}/<class>/<image>; lay it out <split>/<class>/<image>. "
                f"It holds {printable(_holds(content.files, 0))}."
            )
    for split, classes in layout.members.items():
        for label, images in classes.items():
            where = (*top, layout.names[split], label)
            if not images:
                inside = [file for file in content.files if file.parts[: len(where)] == where]
                raise SourceError(
                    f"{place}: {printable('/'.join(where))} holds no image; add images or remove the folder. "
                    f"It holds {printable(_holds(inside, len(where)))}."
                )
            if label != printable(label):
                raise SourceError(
                    f"{place}: the class {printable(label)} has a name that is no printable text; rename it."
                )
            if large := [file for file in images if file.size > MAX_BYTES]:
                name, size = printable(min(large).name), min(large).size / 1e9
                raise SourceError(f"{place}: {name} has {size:.1f} GB, more than an image; remove it.")
    named = layout.names
    splits = [split for split in layout.members if layout.members[split]]
    for here, there in [(here, "train") for here in splits] + [("train", there) for there in splits]:
        if only := sorted(set(layout.members[here]) - set(layout.members[there])):
            message = f"{named[here]}/ has the class {only[0]!r} but {named[there]}/ has not; both need every class"
            instead = [file for file in content.files if file.parts == (*top, named[there], only[0])]
            why = f" ({printable(min(instead).name)} is a {min(instead).reason or 'file'})" if instead else ""
            raise SourceError(f"{place}: {message}{why}.")


def _interpreted(layout: _Layout, content: Content, top: tuple[str, ...]) -> list[str]:
    notes = [f"The top folder {top[0]}/ was skipped."] if top else []
    for split, name in sorted(layout.names.items()):
        if split == "valid" and layout.members[split]:
            notes.append(f"{name}/ is used as the validation split.")
        elif split != "valid" and name != split:
            notes.append(f"{name}/ is used as {split}/.")
    if content.links:
        notes.append(tally(len(content.links), "linked folder", "followed", printable(min(content.links))))
    masks = []
    for classes in layout.members.values():
        for images in classes.values():
            stems = {os.path.splitext(file.parts[-1])[0] for file in images}
            for file in images:
                stem = os.path.splitext(file.parts[-1])[0]
                if any(stem.lower().endswith(end) and stem[: -len(end)] in stems for end in MASK_ENDINGS):
                    masks.append(file.name)
    if masks:
        what = "named like a mask of another one beside it, but read"
        notes.append(tally(len(masks), "image", what, printable(min(masks))))
    return notes


def _keys(layout: _Layout, top: tuple[str, ...]) -> dict[str, str]:
    """Names by which images are sorted and enter the digest, where they differ from those of the folder or zip.

    They are equal for a folder and its zip, whatever the form of their names. Files that differ only in form
    (decomposed letters, backslashes) are told apart by their own names.
    """
    keys = {}
    for split, classes in layout.members.items():
        for label, images in classes.items():
            equal = Counter(file.parts for file in images)
            for file in images:
                key = f"{USUAL[split]}/{label}/{file.parts[-1]}"
                if equal[file.parts] > 1:
                    key += f":{file.name}"
                if key != file.name:
                    keys[file.name] = key
    return keys


@dataclass(frozen=True)
class _Plan:
    """What is read: file names in order, labels by split, names for the digest; and what is said about the rest."""

    classes: tuple[str, ...]
    names: Sequence[str]
    labels: Mapping[str, np.ndarray]
    keys: Mapping[str, str]
    left_aside: tuple[LeftAside, ...]
    notes: tuple[str, ...]


def _plan(place: Path) -> _Plan:
    try:
        content = _list_folder(place) if place.is_dir() else _list_zip(place)
    except OSError as error:
        raise SourceError(f"{place} cannot be read ({error}); allow reading it or remove that part.") from error
    for folder in {file.parts[:-1] for file in content.files if not file.reason}:  # not all zips list them
        content.folders.update(folder[:depth] for depth in range(1, len(folder) + 1))
    layout, top = _arrange(content, place)
    _check(layout, content, top, place)
    classes = tuple(sorted(layout.members["train"]))
    keys = _keys(layout, top)
    names, labels = [], {}
    for split in (*SPLITS, "valid"):
        if by_class := layout.members.get(split):
            for label in classes:
                names += sorted((file.name for file in by_class[label]), key=lambda name: keys.get(name, name))
            labels[split] = np.repeat(np.arange(len(classes)), [len(by_class[label]) for label in classes])
    aside = [LeftAside(reason, len(files), printable(min(files))) for reason, files in sorted(layout.aside.items())]
    return _Plan(classes, names, labels, keys, tuple(aside), tuple(_interpreted(layout, content, top)))


def image_folder(request: Request, place: Path) -> Source:
    """A folder or zip laid out ``<split>/<class>/<image>``; classes and images in alphabetical order.

    Raises:
        SourceError: it lacks a split, a class lacks images, or an image cannot be read.
    """
    plan = _plan(place)
    digest = hashlib.sha256()
    pixels, remarks = read_images(place, plan.names, request, digest, known_as=plan.keys)
    images = dict(zip(plan.labels, np.split(pixels, np.cumsum(list(map(len, plan.labels.values())))[:-1])))
    notes = (*plan.notes, *remarks)
    return Source(request.file, plan.classes, images, plan.labels, digest.hexdigest(), plan.left_aside, notes)
