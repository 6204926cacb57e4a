"""Stage ``search``: a cell for every task that the plans send to the architecture search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from par.config import Config
from par.files import write_atomically, write_csv, write_json
from par.numerics import resolve_numerics
from par.relatedness.plan import read_plan
from par.settings import resolve
from par.steps.search_job import SearchJob
from par.streams import load_stream
from pipeline.stage import CELLS, PLANS, SEARCH_SECONDS, STREAMS, compute, device_and_precision, run_stage, untimed
from pipeline.tracking import Run


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``cells/<stream>/<variant>/<seed>/<task>.json`` (genotype) and ``.csv`` (the course of the search), and
    ``seconds/search/<stream>.json``."""
    jobs = jobs_of(config, stream)
    distinct = {job.key: job for job in jobs.values()}  # variants share searches
    store = compute(distinct, config, f"search {stream}", run)

    seconds: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in config.par_learners(stream)}

    def write(draft: Path) -> None:
        draft.mkdir()
        curves = {}
        for (name, seed, task), job in jobs.items():
            entry = store.existing(job.key)
            epochs, history = untimed(entry["history"])
            clock = {"seconds": entry["seconds"], "epochs": epochs}
            seconds[name].setdefault(str(seed), {})[str(task)] = clock
            base = draft / name / str(seed) / str(task)
            write_json(base.with_suffix(".json"), {"genotype": entry["genotype"]})
            if history:
                write_csv(base.with_suffix(".csv"), list(history[0]), history)
                curves[f"{name}/seed{seed}/task{task}"] = entry["history"]
        run.curves(curves)

    write_atomically(CELLS / stream, write)
    write_json(SEARCH_SECONDS / f"{stream}.json", seconds)
    run.artifact(CELLS / stream)
    run.artifact(SEARCH_SECONDS / f"{stream}.json")


def jobs_of(config: Config, stream: str) -> dict[tuple[str, int, int], SearchJob]:
    """The search of every variant, seed and task that the plans send to it."""
    variants = config.par_learners(stream)
    return {(name, job.seed, job.task): job for name in variants for job in _jobs(config, stream, name)}


def _jobs(config: Config, stream: str, variant: str) -> list[SearchJob]:
    """The searches that a variant's plan asks for."""
    plan = read_plan(PLANS / stream / f"{variant}.json")
    settings, (device, precision) = resolve(config, stream, variant), device_and_precision(config)
    numerics = resolve_numerics(config.numerics)
    jobs = []
    for seed in config.seeds_of(variant):
        directory = STREAMS / stream / str(seed)
        tasks = load_stream(directory).tasks
        for decision in plan[seed]:
            if decision.decision == "search":
                n_train = tasks[decision.task].counts["train"]
                minutes = config.checkpoint_minutes
                jobs.append(
                    SearchJob(settings, directory, seed, decision.task, n_train, device, minutes, precision, numerics)
                )
    return jobs


if __name__ == "__main__":
    run_stage("search", main)
