"""What would become of a task that is not in a stream yet: its distances, PAR's decision, what it would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high
from typing import Any

import numpy as np

from par.cells.genotype import DARTS_V1
from par.config import LearnerSettings, Routing
from par.files import read_json
from par.methods.par import Par
from par.relatedness.distance import distance_matrix
from par.relatedness.extractor import Extractor, extract_stream
from par.relatedness.plan import Decision, chains
from par.relatedness.prototypes import Prototypes, class_prototypes
from par.relatedness.routing import group_score, route
from par.schema import parse
from par.streams import SourceError, Stream
from par.streams.definition import Definition
from par.streams.stream import build_definition


@dataclass(frozen=True)
class Forecast:
    """What PAR would do with a new task at the end of a stream.

    ``decisions`` are those of the stream's tasks, ``new`` that of the new task; ``scores`` its distance to every group,
    ``of_tasks`` its distance to every task. ``groups`` hold the stream's tasks by group.
    """

    decisions: tuple[Decision, ...]
    new: Decision
    groups: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]
    of_tasks: tuple[float, ...]

    @property
    def nearest_task(self) -> int:
        return int(np.argmin(self.of_tasks))


def build_task(
    stream: Stream,
    place: Path,
    out: Path,
    *,
    classes: Sequence[str] | None = None,
    train: int | None = None,
    valid: int | None = None,
) -> Stream:
    """The image folder or zip ``place`` as a stream of one task, built as a source of ``stream`` would be.

    Args:
        out: where the built stream goes.
        classes: names of the classes that count (None: all).
        train, valid: images a class (None: as many validation images as the median task of the stream has a class, the
            rest trains).

    Raises:
        SourceError: no folder or zip of ``<split>/<class>/<image>``, or too few images.
        ConfigError: a class that it does not have.
    """
    if not place.exists():
        raise SourceError(f"{place} does not exist; give a folder or zip with <split>/<class>/<image>.")
    if valid is None:
        valid = median_high(max(1, round(task.counts["valid"] / task.n_classes)) for task in stream.tasks)
    height, width = stream.tasks[0].image_size
    task = {"source": "new", "name": place.stem, "classes": classes, "train": train, "valid": valid}
    raw: dict[str, Any] = {
        "image_size": height if height == width else None,
        "sources": {"new": {"file": place.name, "resize": height == width, "resample": stream.tasks[0].resample}},
        "tasks": [{key: value for key, value in task.items() if value is not None}],
    }
    name = f"{stream.name} and {place.stem}"
    return build_definition(name, stream.seed, parse(Definition, raw, str(place)), raw, place.absolute().parent, out)


def forecast(
    stream: Stream,
    new: Stream,
    routing: Routing,
    features: Mapping[str, np.ndarray],
    prototypes: Sequence[Prototypes],
    extractor: Extractor,
) -> Forecast:
    """Route the stream's tasks and, after them, the one task of ``new``.

    Args:
        features: ``<task>/features`` and ``<task>/labels`` of the stream's tasks, of the split that ``routing`` names.
        prototypes: of the same.
        extractor: the one that made them.
    """
    estimator, split = routing.distance.estimator, routing.distance.split
    (task,), n_tasks = new.tasks, len(stream.tasks)
    found = extract_stream(new, extractor, [split])
    own, labels = (found[f"{task.index}/{split}/{kind}"] for kind in ("features", "labels"))
    matrix = distance_matrix(
        estimator,
        [*(features[f"{index}/features"] for index in range(n_tasks)), own],
        [*(features[f"{index}/labels"] for index in range(n_tasks)), labels],
        [*prototypes, class_prototypes(own, labels, task.n_classes)],
    )
    tasks = [*stream.tasks, task]
    *decisions, last = route(
        matrix,
        [one.counts["train"] for one in tasks],
        [one.name for one in tasks],
        alpha=routing.alpha,
        beta=routing.beta,
        freeze_below=routing.freeze_below,
        estimator=estimator,
    )
    groups = chains(decisions)
    return Forecast(
        tuple(decisions),
        last,
        tuple(map(tuple, groups)),
        tuple(group_score(estimator, matrix[-1, members]) for members in groups),
        tuple(group_score(estimator, matrix[-1, [index]]) for index in range(n_tasks)),
    )


def new_parameters(found: Forecast, n_classes: int, settings: LearnerSettings, cells: Path) -> tuple[int, int]:
    """Parameters that the new task would add: the least and the most, which differ where a cell is yet to be found.

    Args:
        settings: of PAR on the stream.
        cells: ``cells/<stream>/par/<seed>``; where a cell is missing there, DARTS_V1 stands for it.
    """
    known = {path.stem: read_json(path)["genotype"] for path in cells.glob("*.json")}
    of_source = known.get(str(found.new.cell_from))
    if found.new.decision == "search" or of_source is None:
        genotypes = [*known.values(), DARTS_V1.to_json()]
    else:
        genotypes = [of_source]
    sizes = []
    for genotype in genotypes:
        learner = Par(settings)
        learner.grow({"task": 0, "n_classes": n_classes, "genotype": genotype})
        joins = found.new.decision == "join"
        counted = learner.heads if joins else learner
        sizes.append(sum(parameter.numel() for parameter in counted.parameters()))
    return min(sizes), max(sizes)
