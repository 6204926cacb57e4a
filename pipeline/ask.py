"""What would become of a new task: ``python -m pipeline.ask --stream S NEW``, with NEW a folder or zip of images.

NEW is laid out ``<split>/<class>/<image>`` like a source of a stream. Nothing is trained and no file but the picture is
written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from par.config import PAR, Config, LearnerSettings, Routing
from par.device import resolve_device
from par.files import read_json
from par.relatedness.plan import read_plan
from par.reporting.style import write_png
from par.settings import load, resolve
from par.streams import Stream, load_stream
from par.text import listing
from par.use.forecast import Forecast, build_task, forecast, new_parameters
from par.use.forecast_figure import forecast_figure
from par.use.identifier import extractor_of, load_prototypes
from pipeline.stage import (
    CELLS,
    FEATURES,
    PLANS,
    PROTOTYPES,
    RUNS,
    SEARCH_SECONDS,
    STREAMS,
    TRAIN_SECONDS,
    mistakes_in_one_sentence,
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.ask", description=__doc__.splitlines()[0])
    parser.add_argument("--stream", required=True, help="a built stream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--classes", help="names of the classes that count, with commas (default: all)")
    parser.add_argument("--train", type=int, help="training images a class (default: all but the validation images)")
    parser.add_argument("--valid", type=int, help="validation images a class (default: as the stream's median task)")
    parser.add_argument("--picture", type=Path, help="PNG to write (default: ask_<name>.png)")
    parser.add_argument("new", type=Path, help="folder or zip with <split>/<class>/<image>")
    options = parser.parse_args(arguments)
    with mistakes_in_one_sentence("ask"), tempfile.TemporaryDirectory() as folder:
        return _ask(options, Path(folder))


def _ask(options: argparse.Namespace, folder: Path) -> int:
    config, name, seed = load(), options.stream, options.seed
    torch.set_num_threads(1)
    stream = load_stream(STREAMS / name / str(seed))
    settings, routing = resolve(config, name, PAR), config.routing(PAR)
    extractor = extractor_of(FEATURES / f"{name}.npz", config.extractor, resolve_device(config.device))
    split, n_tasks = routing.distance.split, len(stream.tasks)
    prototypes = load_prototypes(PROTOTYPES / f"{name}.npz", seed, n_tasks, split)
    with np.load(FEATURES / f"{name}.npz") as archive:
        features = {
            f"{task}/{kind}": archive[f"{seed}/{task}/{split}/{kind}"]
            for task in range(n_tasks)
            for kind in ("features", "labels")
        }
    classes = options.classes.split(",") if options.classes else None
    new = build_task(stream, options.new, folder / "new", classes=classes, train=options.train, valid=options.valid)
    found = forecast(stream, new, routing, features, prototypes, extractor)
    lines = [
        *_used(new, routing, extractor.name),
        "",
        *_distances(found, stream),
        "",
        *_decision(found, routing),
        *_other_plan(found, name, seed),
        *_cost(found, stream, new, config, settings),
    ]
    print("\n".join(lines))
    picture = options.picture or Path(f"ask_{options.new.stem}.png")
    write_png(forecast_figure(found, stream, new, routing.alpha, routing.beta), picture)
    print(f"Picture: {picture}")
    return 0


def _used(new: Stream, routing: Routing, extractor: str) -> list[str]:
    """What the answer is based on."""
    (task,) = new.tasks
    counts, (height, width) = task.counts, task.image_size
    return [
        f"{task.name}: {task.n_classes} classes ({listing(task.class_names)}), {counts['train']} training images, "
        f"{width}x{height} pixels.",
        f"Distances: estimator {routing.distance.estimator} on the {counts[routing.distance.split]} "
        f"{routing.distance.split} images, features of {extractor}.",
        *new.warnings,
    ]


def _distances(found: Forecast, stream: Stream) -> list[str]:
    rows = [("group", "distance", "tasks")]
    for group, members in enumerate(found.groups):
        tasks = [f"{task} {stream.tasks[task].name} ({found.of_tasks[task]:.3f})" for task in members]
        rows.append((str(group), f"{found.scores[group]:.3f}", listing(tasks, 8)))
    nearest = stream.tasks[found.nearest_task]
    table = ["  ".join((row[0].ljust(5), row[1].rjust(8), row[2])) for row in rows]
    return [*table, f"Nearest task: {nearest.index} ({nearest.name}), {found.of_tasks[nearest.index]:.3f}."]


def _decision(found: Forecast, routing: Routing) -> list[str]:
    """The decision, and the thresholds at which it would be another one, the groups staying as they are."""
    new, nearest = found.new, min(found.scores)
    words = {"join": f"join group {new.group}", "reuse_cell": f"take the cell of task {new.cell_from}"}
    what = words.get(new.decision, "search a cell") + (", head only" if new.head_only else "")
    lines = [f"PAR would {what} (alpha {routing.alpha:g}, beta {routing.beta:g}): {new.reason}."]
    limit = f"{nearest:.3f}"
    if new.decision == "join":
        lines.append(f"With alpha below {limit} it would take that group's cell, with beta below it too, search.")
    elif new.decision == "reuse_cell":
        lines.append(f"From alpha {limit} on it would join that group, with beta below {limit} it would search.")
    else:
        lines.append(f"From beta {limit} on it would take that group's cell, from the same alpha on join it.")
    return lines


def _other_plan(found: Forecast, stream: str, seed: int) -> list[str]:
    """A sentence where the plan that was learned has other groups than params.yaml gives now."""
    path = PLANS / stream / f"{PAR}.json"
    planned = read_plan(path).get(seed) if path.is_file() else None
    if planned is None or planned == list(found.decisions):
        return []
    return [f"{path} decides otherwise on the stream's own tasks; the answer is by params.yaml as it is now."]


def _cost(found: Forecast, stream: Stream, new: Stream, config: Config, settings: LearnerSettings) -> list[str]:
    """Parameters and minutes."""
    (task,), seed = new.tasks, str(stream.seed)
    cells = CELLS / stream.name / PAR / seed
    least, most = new_parameters(found, task.n_classes, settings, cells)
    words = f"{least:,} parameters" if least == most else f"{least:,} to {most:,} parameters, by the cell that is found"
    if found.new.decision != "join" and not list(cells.glob("*.json")):
        words += ", with DARTS_V1 in place of cells that are not searched yet"
    lines = [f"It would add {words}."]
    measured = _seconds_per_image(stream)
    if measured is None:
        return [*lines, "No run of PAR on this stream is at hand to estimate the time by."]
    learning = measured * settings.recipe.epochs * task.counts["train"] / 60
    lines.append(
        f"Learning it would take about {learning:.1f} minutes: {settings.recipe.epochs} epochs at "
        f"{1000 * measured:.2f} ms an image, as the stream's own tasks took on average."
    )
    if found.new.decision == "search" and settings.search.update in ("mdl", "advantage"):
        lines += _search_cost(stream, settings, task.counts["train"])
    return lines


def _search_cost(stream: Stream, settings: LearnerSettings, n_train: int) -> list[str]:
    """Minutes of the search, by those of the stream's own tasks."""
    clocks = _seconds(SEARCH_SECONDS, stream)
    images = settings.search.epochs * sum(stream.tasks[int(task)].counts["train"] for task in clocks)
    if not images:
        return ["No search of this stream is at hand to estimate the time of another by."]
    per_image = sum(clock["seconds"] for clock in clocks.values()) / images
    minutes = per_image * settings.search.epochs * n_train / 60
    return [f"The search before it would take about {minutes:.1f} minutes."]


def _seconds_per_image(stream: Stream) -> float | None:
    """Seconds that a training image took an epoch, over all steps of PAR's run; None where there is no run."""
    run, clocks = RUNS / stream.name / PAR / str(stream.seed) / "steps.json", _seconds(TRAIN_SECONDS, stream)
    if not clocks or not run.is_file():
        return None
    images = sum(step["epochs"] * stream.tasks[step["task"]].counts["train"] for step in read_json(run)["steps"])
    return sum(clocks["steps"].values()) / images if images else None


def _seconds(folder: Path, stream: Stream) -> dict[str, Any]:
    """What PAR's searches or steps took on a stream; nothing where they have not run."""
    path = folder / f"{stream.name}.json"
    return read_json(path).get(PAR, {}).get(str(stream.seed), {}) if path.is_file() else {}


if __name__ == "__main__":
    sys.exit(main())
