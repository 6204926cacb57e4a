"""All searches and chains of params.yaml, which of their steps the store lacks, and what they will take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from par.config import PAR, Config, LearnerSettings
from par.relatedness.plan import read_plan
from par.schema import to_plain
from par.settings import resolve
from par.steps.chain_job import ChainTask, plan_chains
from par.steps.estimate import SEARCH, Kind, Throughput, kind_of, kind_of_job, measure
from par.steps.jobs import Job, Planned
from par.steps.routed_chain import RoutedChainJob, awaited, lacking
from par.steps.store import Store, entry_key
from par.streams.outline import TaskOutline, outline
from pipeline import search, train
from pipeline.stage import PLANS, STREAMS, device_and_precision


@dataclass(frozen=True)
class Work:
    """One search or chain that is not all in the store.

    Args:
        learner: the first that needs it, ``search`` for a search.
        after: key of the search that it waits for, where that is not done either.
        steps, images: that the store lacks; the images are epochs times training images.
        n_tasks: of the chain.
        job: None where the stream is not built, so that only its size is known.
    """

    stream: str
    learner: str
    key: str
    after: str | None
    steps: int
    images: int
    n_tasks: int
    kind: Kind
    job: Job | None = None

    def seconds(self, throughput: Throughput) -> float:
        """What it will take."""
        return throughput.seconds(self.kind, self.images, self.n_tasks)

    def planned(self, throughput: Throughput) -> Planned:
        """For the executors."""
        assert self.job is not None, "only the work of built streams can be done"
        return Planned(self.key, self.job, self.after, self.seconds(throughput))


@dataclass(frozen=True)
class Survey:
    """What there is to do. ``n_steps``: all steps of built streams; ``outlined``, ``unknown``: streams that are not
    built and whose work is in ``work`` by their definition, or not at all."""

    work: tuple[Work, ...]
    throughput: Throughput
    n_steps: int
    outlined: tuple[str, ...]
    unknown: tuple[str, ...]


def survey(
    config: Config, store: Store, streams: Sequence[str] | None = None, *, by_definition: bool = False
) -> Survey:
    """What the store lacks of ``streams``, by default of all that params.yaml lists.

    Args:
        by_definition: as if no stream were built here, so that the outcome depends on params.yaml alone.

    Raises:
        ConfigError: a value of params.yaml that cannot be used.
    """
    present = {path.stem for path in store.entries()}
    jobs: dict[str, tuple[str, str, Job]] = {}
    work: list[Work] = []
    outlined, unknown = [], []
    for stream in config.streams if streams is None else streams:
        if not by_definition and is_routed(config, stream):
            for learner, key, job in jobs_of(config, stream):
                jobs.setdefault(key, (stream, learner, job))
        elif (tasks := outline(stream)) is not None:
            outlined.append(stream)
            work += _outlined(config, stream, tasks)
        else:
            unknown.append(stream)
    found = {key: lacking(job, store, present) for key, (_, _, job) in jobs.items()}
    for key, (stream, learner, job) in jobs.items():
        kind, lack = kind_of_job(job), found[key]
        if lack.entries and kind is not None:
            after = job.search.key if isinstance(job, RoutedChainJob) else None
            after = after if after is not None and found[after].entries else None
            work.append(Work(stream, learner, key, after, lack.steps, lack.images, lack.n_steps, kind, job))
    throughput = measure((job for _, _, job in jobs.values()), store, present)
    n_steps = sum(lack.n_steps for lack in found.values())
    return Survey(tuple(work), throughput, n_steps, tuple(outlined), tuple(unknown))


def is_routed(config: Config, stream: str) -> bool:
    """Whether a stream is built for all seeds and has the plans of all variants."""
    files = [STREAMS / stream / str(seed) / "stream.json" for seed in config.seeds]
    files += [PLANS / stream / f"{learner}.json" for learner in config.par_learners(stream)]
    return all(map(Path.is_file, files))


def jobs_of(config: Config, stream: str) -> Iterator[tuple[str, str, Job]]:
    """Learner, key and job of every search and chain of a stream; what variants share comes several times."""
    searches = search.jobs_of(config, stream)
    for one in searches.values():
        yield SEARCH, one.key, one

    def cell(stream: str, variant: str, seed: int, task: int) -> Mapping[str, Any]:
        return awaited(searches[variant, seed, task])

    for (learner, seed), chains in train.jobs_of(config, stream, cell).items():
        cells = {}
        if config.method_of(learner) == PAR:
            decisions = read_plan(PLANS / stream / f"{learner}.json")[seed]
            cells = {one.task: searches[learner, seed, one.cell_from] for one in decisions}
        for chain in chains:
            first = chain.chain[0].index
            job = RoutedChainJob(cells[first], chain) if cells else chain
            yield learner, chain.step_keys()[-1], job


def _outlined(config: Config, stream: str, tasks: Sequence[TaskOutline]) -> Iterator[Work]:
    """The work of a stream that is not built, all of it to be done. Of PAR at its worst: each task is searched and
    gets an expert of its own, and variants with thresholds or distances of their own share no expert with others."""
    device = device_and_precision(config)[0].type
    seen = set()
    for learner in config.learners(stream):
        settings = resolve(config, stream, learner)
        for one in _outlined_learner(config, stream, learner, settings, tasks, device):
            if one.key not in seen:
                seen.add(one.key)
                yield one


def _outlined_learner(
    config: Config, stream: str, learner: str, settings: LearnerSettings, tasks: Sequence[TaskOutline], device: str
) -> Iterator[Work]:
    is_par = settings.method == PAR
    routed = [[ChainTask(index)] for index in range(len(tasks))] if is_par else []
    plain = {name: to_plain(value) for name, value in vars(settings).items() if name != "learner"}
    routing = repr(config.routing(learner)) if is_par else None  # JSON has no -inf
    for seed in config.seeds_of(learner):
        for chain in plan_chains(settings.method, len(tasks), routed):
            indices = [planned.index for planned in chain]
            images = settings.recipe.epochs * sum(tasks[index].n_train for index in indices)
            after = None
            if is_par:
                (index,) = indices
                trains = settings.search.update in ("mdl", "advantage")
                n_images = settings.search.epochs * (tasks[index].n_train // 2) if trains else 0
                kind = kind_of(settings, tasks[index].size, device, search=True)
                after = entry_key([stream, seed, index, kind.settings, to_plain(settings.recipe)])
                yield Work(stream, SEARCH, after, None, 1, n_images, 1, kind)
            key = entry_key([stream, seed, indices, plain, routing])
            kind = kind_of(settings, tasks[indices[0]].size, device)
            yield Work(stream, learner, key, after, len(chain), images, len(chain), kind)
