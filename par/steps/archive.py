"""Small files in one archive, with which finished steps travel: an uncompressed zip."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from par.files import write_atomically

EPOCH = (1980, 1, 1, 0, 0, 0)  # equal files make equal archives


class ArchiveError(ValueError):
    """A file that is no whole archive."""


def write_archive(file: Path, contents: Iterable[tuple[str, bytes]]) -> None:
    """Write names and contents, one after another."""

    def write(draft: Path) -> None:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
            for name, content in contents:
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content)

    write_atomically(file, write)


def read_archive(file: Path) -> Iterator[tuple[str, bytes | None]]:
    """Names, which can be any text, and contents, one after another; None is one that cannot be read.

    Compressed contents are not read: a few bytes of them can be terabytes.

    Raises:
        ArchiveError: the file is no archive, or not a whole one.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                content = None
                if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:  # nor encrypted
                    with suppress(zipfile.BadZipFile, EOFError):
                        content = archive.read(member)
                yield member.filename, content
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:  # ValueError: undecodable names, ...
        raise ArchiveError(f"{file} is no whole archive ({error}); export it again.") from None
