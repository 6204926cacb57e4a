"""A chain of PAR whose cell is not searched yet, and what a job would find in the store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from par.cells.genotype import from_json
from par.steps.chain_job import ChainJob, prediction_key
from par.steps.jobs import Job
from par.steps.search_job import SearchJob
from par.steps.store import Store
from par.streams import load_stream


@dataclass(frozen=True)
class RoutedChainJob:
    """A chain and the search of its cell (a :class:`par.steps.jobs.Job`).

    The chain takes the search's result from the store when it starts, and searches itself where there is none, so that
    its steps are those of the stage ``train``.

    Args:
        chain: its tasks have :func:`awaited` in place of a genotype.
    """

    search: SearchJob
    chain: ChainJob

    @property
    def label(self) -> str:
        """For people."""
        return self.chain.label

    @property
    def key(self) -> str:
        """Names the job before and after its search."""
        return self.chain.step_keys()[-1]

    def cost(self) -> int:
        """See :class:`par.steps.jobs.Job`; the search's images are the search's."""
        return self.chain.cost()

    def run(self, store: Store, progress: Callable[[int], None]) -> tuple[int, int]:
        """See :class:`par.steps.jobs.Job`; a search that has to be done here counts as a step computed."""
        searched, _ = self.search.run(store, lambda n_images: None)
        chain = self.resolved(store)
        assert chain is not None, "the search has just been in the store"
        computed, reused = chain.run(store, progress)
        return searched + computed, reused

    def resolved(self, store: Store) -> ChainJob | None:
        """The chain with its genotype; None where the store has none."""
        entry = store.get(self.search.key)
        if entry is None:
            return None
        genotype = from_json(entry["genotype"]).to_json()
        return replace(self.chain, chain=tuple(replace(task, genotype=genotype) for task in self.chain.chain))


def awaited(search: SearchJob) -> dict[str, Any]:
    """Stands for the genotype that ``search`` will find."""
    return {"search": search.key}


@dataclass(frozen=True)
class Lacking:
    """What the store lacks of a job's steps: how many of ``n_steps``, and their training images. ``entries`` counts the
    predictions too."""

    n_steps: int
    steps: int
    images: int
    entries: int


def lacking(job: Job, store: Store, present: Collection[str]) -> Lacking:
    """What ``job`` would have to compute; ``present`` are the keys in the store (their entries are not read)."""
    match job:
        case SearchJob():
            n = int(job.key not in present)
            return Lacking(1, n, n * job.cost(), n)
        case RoutedChainJob():
            chain = job.resolved(store) if job.search.key in present else None
            n = len(job.chain.chain)
            return Lacking(n, n, job.cost(), n) if chain is None else lacking(chain, store, present)
        case ChainJob():
            return _of_chain(job, present)
    return Lacking(1, 1, job.cost(), 1)


def _of_chain(job: ChainJob, present: Collection[str]) -> Lacking:
    tasks, keys = load_stream(job.directory).tasks, job.step_keys()
    absent = [size for key, size in zip(keys, job.sizes, strict=True) if key not in present]
    predictions = (
        prediction_key(key, tasks[index]) for position, key in enumerate(keys) for index in job.tested_after(position)
    )
    n_predictions = sum(key not in present for key in predictions)
    images = job.settings.recipe.epochs * sum(absent)
    return Lacking(len(keys), len(absent), images, len(absent) + n_predictions)
