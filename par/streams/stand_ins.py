"""The small archives that streams use in place of data sets: ``python -m par.streams.stand_ins [NAME ...]``.

Cuts them from the official images in ``data_dir``, which torchvision downloads where they are not there (GTSRB 0.3 GB,
DTD 0.6 GB; miniImageNet has no download), into ``<data_dir>/<NAME>.zip``: ``<split>/<class>/<number>.png``.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from pathlib import Path

from PIL import Image

from par.files import in_words, write_atomically
from par.streams.official import STAND_INS, StandIn
from par.streams.reading import SPLITS, Request, Source, SourceError
from par.streams.sources import load_source, own_place


def write_archive(source: Source, part: StandIn, path: Path) -> int:
    """Write a part of ``source`` to the zip ``path``; returns the number of images. Equal images, equal bytes.

    Raises:
        SourceError: a class is not there, or has too few images.
    """
    chosen: dict[str, tuple[str, int]] = {}
    for name in part.classes or source.classes:
        if name not in source.classes:
            found = f"has {len(source.classes)} others"
            raise SourceError(f"{path.name} needs the class {name!r} of {source.name}, which {found}.")
        for split, count in zip(SPLITS, (part.train, part.test)):
            rows = source.rows(split, source.classes.index(name))
            if len(rows) < count:
                raise SourceError(
                    f"{path.name} needs {count} {split} images of the class {name!r} of {source.name}, which has "
                    f"{len(rows)}; fetch the official files again."
                )
            chosen |= {
                f"{split}/{name}/{number:03}.png": (split, row) for number, row in enumerate(rows[:count].tolist())
            }

    def write(draft: Path) -> None:
        with zipfile.ZipFile(draft, "w") as archive:  # stored: PNG is compressed
            for name, (split, row) in chosen.items():
                content = io.BytesIO()
                Image.fromarray(source.images[split][row]).save(content, format="PNG")
                archive.writestr(zipfile.ZipInfo(name), content.getvalue())  # without the time

    write_atomically(path, write)
    return len(chosen)


def main(arguments: list[str] | None = None) -> int:
    """Command line; exits with 1 where one could not be made, after the others."""
    parser = argparse.ArgumentParser(prog="python -m par.streams.stand_ins", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STAND_INS)}; all by default")
    parser.add_argument("--data-dir", type=Path, default=Path("data/sources"), help="where data sets lie; %(default)s")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in STAND_INS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(STAND_INS)}")
    failed = False
    for name in options.names or STAND_INS:
        part, path = STAND_INS[name], options.data_dir / f"{name}.zip"
        if (place := own_place(name, options.data_dir)) is not None:
            print(f"{place} is there already; remove it to make it anew.")
            continue
        try:
            whole = load_source(Request(part.dataset, part.dataset, options.data_dir, part.size, "bicubic"))
            n_images = write_archive(whole, part, path)
            print(f"{path}: {n_images} images, {path.stat().st_size / 1e6:.0f} MB")
        except (SourceError, OSError) as error:
            print(f"{name}: {in_words(error) if isinstance(error, OSError) else error}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
