"""Stage ``train``: every method and every variant of PAR on one stream, for every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from par.cells.genotype import from_json
from par.config import PAR, Config, LearnerSettings
from par.device import deciding_bits, hardware
from par.files import read_json, write_atomically, write_csv, write_json, write_npz, write_tensors
from par.numerics import resolve_numerics
from par.relatedness.plan import chains, read_plan
from par.schema import to_plain
from par.settings import resolve
from par.steps.chain_job import ChainJob, ChainTask, assemble, plan_chains
from par.steps.slots import physical_cores
from par.steps.store import Store
from par.streams import load_stream
from pipeline.stage import (
    CELLS,
    PLANS,
    RUNS,
    STREAMS,
    TRAIN_SECONDS,
    StageError,
    compute,
    device_and_precision,
    run_stage,
    untimed,
)
from pipeline.tracking import Run

Cell = Callable[[str, str, int, int], Mapping[str, Any]]  # genotype by stream, variant, seed and the task searched for


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``runs/<stream>/<learner>/<seed>/`` (contract in README, section Architecture), ``hardware.json`` and
    ``seconds/train/<stream>.json``."""
    jobs = jobs_of(config, stream)
    distinct = {job.step_keys()[-1]: job for chain in jobs.values() for job in chain}  # variants share chains
    store = compute(distinct, config, f"train {stream}", run)
    run.ends_soon()

    seconds: dict[str, dict[str, Any]] = {learner: {} for learner in config.learners(stream)}

    def write(draft: Path) -> None:
        draft.mkdir()
        device, precision = device_and_precision(config)
        bits = deciding_bits(precision, resolve_numerics(config.numerics))
        device_in_words = hardware(device) + (", bf16" if precision == "bf16" else "")
        write_json(draft / "hardware.json", {"device": device_in_words, "bits": bits})
        folders = {(learner, seed): draft / learner / str(seed) for learner, seed in jobs}
        # Half of the time is waiting for the disk.
        with ThreadPoolExecutor(physical_cores()) as pool:
            courses = pool.map(lambda name: _write_run(folders[name], stream, jobs[name], store), jobs)
            for (learner, seed), course in zip(jobs, courses, strict=True):
                with run.child(f"{learner} seed {seed}") as child:
                    _report(child, stream, folders[learner, seed], jobs[learner, seed][0], course)
                seconds[learner][str(seed)] = course.seconds

    write_atomically(RUNS / stream, write)
    write_json(TRAIN_SECONDS / f"{stream}.json", seconds)


def genotype_found(stream: str, variant: str, seed: int, task: int) -> Mapping[str, Any]:
    """The genotype, as JSON has it, that the stage ``search`` has written.

    Raises:
        StageError: there is none.
    """
    path = CELLS / stream / variant / str(seed) / f"{task}.json"
    try:
        return from_json(read_json(path)["genotype"]).to_json()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StageError(f"{path} holds no genotype ({error}); run the stage search again.") from None


def jobs_of(config: Config, stream: str, cell: Cell = genotype_found) -> dict[tuple[str, int], list[ChainJob]]:
    """The chains of every learner and seed; a wrong hyper-parameter is found before there is a job."""
    settings = {learner: resolve(config, stream, learner) for learner in config.learners(stream)}
    return {
        (learner, seed): _jobs(settings[learner], stream, seed, config, cell)
        for learner in settings
        for seed in config.seeds_of(learner)
    }


def _jobs(settings: LearnerSettings, stream: str, seed: int, config: Config, cell: Cell) -> list[ChainJob]:
    """The chains of one learner and seed."""
    directory, (device, precision) = STREAMS / stream / str(seed), device_and_precision(config)
    tasks = load_stream(directory).tasks
    routed = _routed(stream, settings.learner, seed, cell) if settings.method == PAR else []
    return [
        ChainJob(
            settings=settings,
            directory=directory,
            seed=seed,
            chain=tuple(chain),
            sizes=tuple(tasks[planned.index].counts["train"] for planned in chain),
            predict=config.predict,
            device=device,
            precision=precision,
            numerics=resolve_numerics(config.numerics),
            capture=config.capture == "auto",
            checkpoint_minutes=config.checkpoint_minutes,
        )
        for chain in plan_chains(settings.method, len(tasks), routed)
    ]


def _routed(stream: str, variant: str, seed: int, cell: Cell) -> list[list[ChainTask]]:
    """The groups of a variant's plan, each task with the cell of its group's expert."""
    decisions = read_plan(PLANS / stream / f"{variant}.json")[seed]
    genotypes = {one.cell_from: cell(stream, variant, seed, one.cell_from) for one in decisions}
    return [
        [ChainTask(task, genotypes[decisions[task].cell_from], decisions[task].head_only) for task in group]
        for group in chains(decisions)
    ]


@dataclass(frozen=True)
class _Course:
    """How a learner learned: its log, steps.json, and its wall-clock seconds of every step by task and of the log's
    epochs."""

    log: list[dict[str, Any]]
    steps: dict[str, Any]
    seconds: dict[str, Any]


def _write_run(folder: Path, stream: str, jobs: list[ChainJob], store: Store) -> _Course:
    """One learner and seed: predictions.npz, model.pt, settings.json, log.csv, steps.json."""
    found, job, settings = assemble(jobs, store), jobs[0], jobs[0].settings
    seconds = {str(step["task"]): step.pop("seconds") for step in found.steps}
    epochs, log = untimed(found.log)
    steps = {
        "chains": [[planned.index for planned in one.chain] for one in jobs],
        "steps": found.steps,
        "n_params": found.steps[-1]["n_params"],
        "n_state": found.steps[-1]["n_state"],
        "n_experts": len(jobs),
        "n_cells_searched": _n_searches(stream, job) if settings.method == PAR else 0,
        "epochs": sum(step["epochs"] for step in found.steps),
    }
    write_npz(folder / "predictions.npz", found.predictions)
    write_tensors(folder / "model.pt", found.models)
    of_stream = {"name": stream, "seed": job.seed, "digest": load_stream(job.directory).digest}
    computed = {"device": job.device.type, "precision": job.precision, "numerics": job.numerics}
    write_json(folder / "settings.json", {"learner": to_plain(settings), "stream": of_stream, "computed": computed})
    write_csv(folder / "log.csv", list(log[0]), log)
    write_json(folder / "steps.json", steps)
    return _Course(found.log, steps, {"steps": seconds, "epochs": epochs})


def _report(child: Run, stream: str, folder: Path, job: ChainJob, course: _Course) -> None:
    """The MLflow run of one learner and seed, whose files are in ``folder``."""
    learner, seconds = job.settings, sum(course.seconds["steps"].values())
    numbers = ("n_params", "n_state", "n_experts", "n_cells_searched")
    child.params({"learner": learner.learner, "method": learner.method, "seed": job.seed, "stream": stream})
    child.metrics({name: course.steps[name] for name in numbers} | {"seconds": seconds})
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in course.log:
        rows.setdefault(f"task{row['task']}", []).append({k: v for k, v in row.items() if k != "task"})
    child.curves(rows)
    accuracies = [{name: step[name] for name in ("task", "valid_accuracy")} for step in course.steps["steps"]]
    child.curves({"": accuracies}, x="task")
    child.artifact(folder / "steps.json")
    child.artifact(folder / "log.csv")


def _n_searches(stream: str, job: ChainJob) -> int:
    """Searches behind a run of PAR; fixed and random cells do not count."""
    return len(list((CELLS / stream / job.settings.learner / str(job.seed)).glob("*.csv")))


if __name__ == "__main__":
    run_stage("train", main)
