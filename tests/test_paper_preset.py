"""presets/paper.yaml in small: every method as it is set there, on images of every size, with the paper's networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from par.cells.genotype import DARTS_V1
from par.config import PAR, Config, LearnerSettings
from par.methods import METHODS
from par.settings import load, resolve
from par.steps.chain_job import ChainJob, ChainTask, assemble, plan_chains
from par.steps.search_job import SearchJob
from par.steps.store import Store
from par.streams import load_stream
from par.streams.outline import outline
from tests.project import REPOSITORY
from tests.steps.streams import built
from tests.test_readme import write_images

SIZES = (32, 84)
DEFINITION = """
image_size: {size}
augment: [crop, flip]
tasks:
  - {{source: pets, train: 4, valid: 2, test: 2}}
  - {{source: signs, train: 4, valid: 2, test: 2}}
  - {{source: pets, name: pets again, train: 4, valid: 2, test: 2}}
"""
CPU = torch.device("cpu")


@cache
def paper() -> Config:
    return load(REPOSITORY / "presets/paper.yaml")


@cache
def sizes_of(stream: str) -> set[int]:
    return {task.size for task in outline(stream)}


def shortened(block: Any) -> Any:
    """A block of settings with one epoch wherever it counts epochs."""
    counts = [one.name for one in fields(block) if one.name == "patience" or one.name.endswith("epochs")]
    return replace(block, **{name: 1 for name in counts if getattr(block, name) is not None})


def settings_of(method: str, size: int) -> list[LearnerSettings]:
    """Those that differ, of a method on the preset's streams of this image size, with one epoch each."""
    found: dict[str, LearnerSettings] = {}
    for stream in paper().streams:
        if method in paper().methods_on(stream) and size in sizes_of(stream):
            settings = resolve(paper(), stream, method)
            blocks = {name: shortened(getattr(settings, name)) for name in ("recipe", "hyper", "search")}
            found.setdefault(repr(short := replace(settings, **blocks)), short)
    return list(found.values())


def jobs(settings: LearnerSettings, directory: Path, n_tasks: int = 3) -> Iterator[SearchJob | ChainJob]:
    """The chains of a method; of PAR a search too, and a plan in which the third task joins the first one's expert."""
    sizes = [task.counts["train"] for task in load_stream(directory).tasks[:n_tasks]]
    if settings.method == PAR:
        yield SearchJob(settings, directory, 0, 0, sizes[0], CPU)
    cell = DARTS_V1.to_json()
    routed = [[ChainTask(index, cell) for index in range(start, n_tasks, 2)] for start in (0, 1)]
    for chain in plan_chains(settings.method, len(sizes), routed):
        of_chain = tuple(sizes[task.index] for task in chain)
        yield ChainJob(settings, directory, 0, tuple(chain), of_chain, "ends", CPU)


@pytest.fixture(scope="module", params=SIZES)
def stream(request, tmp_path_factory) -> tuple[int, Path]:
    """Three tasks of two classes with four training images each, and their pixels a side."""
    size, folder = request.param, tmp_path_factory.mktemp("paper")
    for source in ("pets", "signs"):
        write_images(folder / source, (size, size, 3))
    return size, built(folder, DEFINITION.format(size=size))


def test_the_preset_has_every_method_and_these_sizes():
    assert set(paper().methods) == set(METHODS)
    assert set.union(*map(sizes_of, paper().streams)) == set(SIZES)
    assert all(settings_of(method, size) for method in METHODS for size in SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_by_its_block(method, stream, tmp_path):
    size, directory = stream
    for number, settings in enumerate(settings_of(method, size)):
        n_tasks = 2 if number else 3  # what else it is set to on some streams
        store, all_jobs = Store(tmp_path / str(number)), list(jobs(settings, directory, n_tasks))
        for job in all_jobs:
            job.run(store, lambda n_images: None)
        found = assemble([job for job in all_jobs if isinstance(job, ChainJob)], store)
        assert [step["task"] for step in found.steps] == list(range(n_tasks))
        assert np.isfinite([row["loss"] for row in found.log]).all()
        assert all(set(np.unique(classes)) <= {0, 1} and len(classes) == 4 for classes in found.predictions.values())
