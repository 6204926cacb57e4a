"""What a stream looks like: ``python -m par.streams.show <stream> --seed 0 [--data-dir D] [--out sheet.png]``.

Prints a table of the tasks and one of what was left aside and found in the data, and draws a contact sheet: one row a
task, ten of its training images.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from par.files import write_atomically
from par.schema import ConfigError
from par.streams import findings
from par.streams.sources import SourceError
from par.streams.stream import Stream, Task, build_stream
from par.text import listing, one_line

COLUMNS = 10  # images a task
TILE = 56  # pixels of an image on the sheet
GAP = 4
LABEL = 240  # pixels for the words at the left


def table(stream: Stream) -> str:
    """The tasks of a stream as lines of text: number, name, source, counts, transform, digest, classes."""
    rows: list[tuple[str, ...]] = [
        ("task", "name", "source", "classes", "train", "valid", "test", "transform", "digest", "class names")
    ]
    for task in stream.tasks:
        names = listing(task.class_names)
        counts = [str(task.counts[split]) for split in ("train", "valid", "test")]
        words = task.transform or "-"
        digest = task.digest[:8]
        name = one_line(task.name, 40)
        rows.append((str(task.index), name, task.source, str(task.n_classes), *counts, words, digest, names))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def contact_sheet(stream: Stream) -> Image.Image:
    """One row a task: its name and counts, and ten training images, class after class."""
    step = TILE + GAP
    sheet = Image.new("RGB", (LABEL + COLUMNS * step + GAP, len(stream.tasks) * step + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    small = ImageFont.load_default(11)
    for row, task in enumerate(stream.tasks):
        top = GAP + row * step
        counts = " / ".join(str(task.counts[split]) for split in ("train", "valid", "test"))
        draw.text((GAP, top), f"{task.index}  {one_line(task.name, 30)}", "black", font)
        draw.text((GAP, top + 18), f"{task.n_classes} classes, {counts}", "dimgray", small)
        words = task.transform or ("" if task.source in task.name else task.source)
        draw.text((GAP, top + 34), one_line(words, 40), "dimgray", small)
        for column, image in enumerate(examples(task)):
            tile = Image.fromarray(image).resize((TILE, TILE), Image.Resampling.NEAREST)
            sheet.paste(tile, (LABEL + column * step, top))
    return sheet


def examples(task: Task) -> list[np.ndarray]:
    """Up to ten training images ``[H, W, 3]``, one class after the other, then the classes' second images."""
    train = task.split("train")
    of_class = [np.flatnonzero(train.labels == label) for label in range(task.n_classes)]
    rank = [(turn, label) for turn in range(COLUMNS) for label in range(task.n_classes) if turn < len(of_class[label])]
    chosen = sorted(rank[:COLUMNS], key=lambda pair: pair[::-1])
    return [np.ascontiguousarray(train.images[of_class[label][turn]].transpose(1, 2, 0)) for turn, label in chosen]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m par.streams.show", description="Show the tasks of a stream.")
    parser.add_argument("stream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, default=Path("data/sources"), help="where data sets lie")
    parser.add_argument("--out", type=Path, help="contact sheet (default: <stream>_<seed>.png)")
    options = parser.parse_args(arguments)
    out = options.out or Path(f"{options.stream}_{options.seed}.png")
    with tempfile.TemporaryDirectory() as folder:
        try:
            stream = build_stream(options.stream, options.seed, options.data_dir, Path(folder) / "stream")
        except (ConfigError, SourceError) as error:
            print(error, file=sys.stderr)
            return 1
        print(table(stream))
        if stream.findings:
            print(f"\nWhat was left aside and found in the data:\n{findings.table(stream.findings)}\n")
        sheet = contact_sheet(stream)
    write_atomically(out, lambda draft: sheet.save(draft, format="PNG"))
    print(f"Contact sheet: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
