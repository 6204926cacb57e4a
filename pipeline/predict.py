"""Classes of images by a finished run: ``python -m pipeline.predict --stream S --learner par --task T IMAGES``.

``--task`` takes a task's number or name; ``auto`` takes for each image the task whose class prototypes are nearest;
``any`` lets the classes of all tasks compete, by the probability of the task times that of the class in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from par.config import Config
from par.device import resolve_device
from par.files import write_csv
from par.schema import ConfigError, to_plain
from par.settings import load, resolve
from par.streams import Task
from par.text import one_line
from par.use.identifier import Identifier, extractor_of
from par.use.pictures import PictureReader, differences
from par.use.predictor import UNNAMED, Prediction, Predictor, find_task
from pipeline.models import stream_identity
from pipeline.stage import FEATURES, PROTOTYPES, RUNS, STREAMS, mistakes_in_one_sentence

AT_ONCE = 1024  # images in memory
TOP = 5


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.predict", description=__doc__.splitlines()[0])
    parser.add_argument("--stream", required=True)
    parser.add_argument("--learner", default="par", help="a method or a variant of PAR (default: par)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", required=True, help="a task's number or name, auto or any")
    parser.add_argument("--csv", type=Path, help="write the table to this file instead of printing it")
    parser.add_argument("images", type=Path, nargs="+", help="image files, folders or zips")
    options = parser.parse_args(arguments)
    with mistakes_in_one_sentence("predict"):
        return _predict(options)


def _predict(options: argparse.Namespace) -> int:
    config, stream, seed = load(), options.stream, str(options.seed)
    torch.set_num_threads(1)  # as the stages do: sums in one order on any machine
    device = resolve_device(config.device)
    predictor = Predictor.of_run(RUNS / stream / options.learner / seed, STREAMS / stream / seed, device)
    notes = _changed(config, predictor)
    if predictor.learned_on != device.type:
        notes.append(f"Learned on {predictor.learned_on}, answered on {device.type}: last digits may differ.")
    task = None if options.task in UNNAMED else find_task(predictor.stream, options.task)
    of_tasks = [task] if task else predictor.stream.tasks
    notes += differences(of_tasks)
    reader = PictureReader(of_tasks[0].image_size, of_tasks[0].target)
    answer = _answer(config, predictor, task, options, device)
    rows: list[tuple[str, Prediction]] = []
    for names, pixels in _chunks(reader.read(options.images)):
        rows += zip(names, answer(pixels), strict=True)
    for sentence in [*notes, *reader.notes()]:
        print(sentence, file=sys.stderr)
    _output(rows, options.csv)
    return 0 if rows else 1


def _answer(
    config: Config, predictor: Predictor, task: Task | None, options: argparse.Namespace, device: torch.device
) -> Callable[[np.ndarray], list[Prediction]]:
    """A function from pixels to predictions."""
    if task is not None:
        return lambda pixels: predictor.predict(pixels, task.index, TOP)
    features, prototypes = FEATURES / f"{options.stream}.npz", PROTOTYPES / f"{options.stream}.npz"
    identity = stream_identity(config, predictor.stream, features, prototypes)
    identifier = Identifier(extractor_of(features, config.extractor, device), identity)
    return lambda pixels: predictor.predict_unnamed(pixels, identifier, options.task, TOP)


def _changed(config: Config, predictor: Predictor) -> list[str]:
    """A sentence where params.yaml would now make another learner than the run's."""
    learned = predictor.settings
    try:
        now = resolve(config, predictor.stream.name, learned.learner)
    except (ConfigError, KeyError):
        return [f"params.yaml no longer has the learner {learned.learner}; it answers as it was learned."]
    before, after = to_plain(learned), to_plain(now)
    differing = [key for key in before if before[key] != after[key]]
    words = ", ".join(differing)
    return [f"params.yaml has changed since ({words}); the run answers as it was learned."] if differing else []


def _chunks(images: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[list[str], np.ndarray]]:
    """Names and stacked pixels of so many images at once."""
    iterator = iter(images)
    while chunk := list(islice(iterator, AT_ONCE)):
        yield [name for name, _ in chunk], np.stack([image for _, image in chunk])


def _output(rows: Sequence[tuple[str, Prediction]], path: Path | None) -> None:
    """The table as a CSV file or, for people, on the terminal."""
    if path is None:
        print(_table(rows))
        return
    ranks = range(2, TOP + 1)
    further = [f"{name}_{rank}" for rank in ranks for name in ("task", "class", "probability")]
    write_csv(path, ["file", "task", "class", "probability", *further], (_row(*row) for row in rows))
    print(f"{len(rows)} images: {path}")


def _row(name: str, found: Prediction) -> dict[str, Any]:
    """One image with its most probable classes; those of rank 2 and more have the rank in the column's name."""
    row: dict[str, Any] = {"file": name}
    for rank, (task, label, probability) in enumerate(zip(found.tasks, found.classes, found.probabilities), start=1):
        end = f"_{rank}" if rank > 1 else ""
        row |= {f"task{end}": task.name, f"class{end}": label, f"probability{end}": probability}
    return row


def _table(rows: Sequence[tuple[str, Prediction]]) -> str:
    lines = [("file", "task", "class", "probability", "next")]
    for name, found in rows:
        of_tasks = len({task.index for task in found.tasks}) > 1
        words = [
            f"{one_line(f'{task.name}: {label}' if of_tasks else label, 40)} {probability:.3f}"
            for task, label, probability in zip(found.tasks, found.classes, found.probabilities)
        ]
        first = found.tasks[0]
        head = (one_line(name), f"{first.index} {one_line(first.name, 30)}", one_line(found.classes[0], 40))
        lines.append((*head, f"{found.probabilities[0]:.3f}", ", ".join(words[1:])))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
