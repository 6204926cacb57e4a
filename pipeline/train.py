"""Stage ``train``: every method and every variant of PAR on one stream, for every seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from par.cells.genotype import from_json
from par.config import PAR, Config, LearnerSettings, resolve_path
from par.device import card_of, deciding_bits, hardware, resolve_device
from par.files import read_json, write_atomically, write_csv, write_json, write_npz, write_tensors
from par.numerics import resolve_numerics
from par.relatedness.plan import chains, read_plan
from par.schema import to_plain
from par.settings import resolve
from par.steps.chain_job import ChainJob, ChainTask, assemble, plan_chains
from par.steps.store import DEFAULT_FOLDER, Store
from par.steps.workers import run_jobs
from par.streams import load_stream
from par.training.precision import resolve_precision
from pipeline.stage import CELLS, PLANS, RUNS, STREAMS, TRAIN_SECONDS, StageError, check_outcome, run_stage, untimed
from pipeline.tracking import Run


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``runs/<stream>/<learner>/<seed>/`` (contract in README, section Architecture), ``hardware.json`` and
    ``seconds/train/<stream>.json``."""
    store, device = Store(resolve_path(DEFAULT_FOLDER)), resolve_device(config.device)
    jobs = jobs_of(config, stream, device)
    distinct = {job.step_keys()[-1]: job for chain in jobs.values() for job in chain}  # variants share chains
    n_cards = torch.cuda.device_count()
    on_cards = [replace(job, device=card_of(job.device, i, n_cards)) for i, job in enumerate(distinct.values())]
    outcome = run_jobs(on_cards, store, config.workers, f"train {stream}")
    check_outcome(outcome, run)

    seconds: dict[str, dict[str, Any]] = {learner: {} for learner in config.learners(stream)}

    def write(draft: Path) -> None:
        draft.mkdir()
        precision = resolve_precision(config.precision, device)
        bits = deciding_bits(precision, resolve_numerics(config.numerics))
        device_in_words = hardware(device) + (", bf16" if precision == "bf16" else "")
        write_json(draft / "hardware.json", {"device": device_in_words, "bits": bits})
        for (learner, seed), chain in jobs.items():
            with run.child(f"{learner} seed {seed}") as child:
                clock = _write_run(draft / learner / str(seed), stream, chain, store, child)
                seconds[learner][str(seed)] = clock

    write_atomically(RUNS / stream, write)
    write_json(TRAIN_SECONDS / f"{stream}.json", seconds)


def jobs_of(config: Config, stream: str, device: torch.device) -> dict[tuple[str, int], list[ChainJob]]:
    """The chains of every learner and seed; a wrong hyper-parameter is found before there is a job."""
    settings = {learner: resolve(config, stream, learner) for learner in config.learners(stream)}
    return {
        (learner, seed): _jobs(settings[learner], stream, seed, config, device)
        for learner in settings
        for seed in config.seeds
    }


def _jobs(settings: LearnerSettings, stream: str, seed: int, config: Config, device: torch.device) -> list[ChainJob]:
    """The chains of one learner and seed."""
    directory = STREAMS / stream / str(seed)
    tasks = load_stream(directory).tasks
    routed = _routed(stream, settings.learner, seed) if settings.method == PAR else []
    return [
        ChainJob(
            settings=settings,
            directory=directory,
            seed=seed,
            chain=tuple(chain),
            sizes=tuple(tasks[planned.index].counts["train"] for planned in chain),
            predict=config.predict,
            device=device,
            precision=resolve_precision(config.precision, device),
            numerics=resolve_numerics(config.numerics),
            checkpoint_minutes=config.checkpoint_minutes,
        )
        for chain in plan_chains(settings.method, len(tasks), routed)
    ]


def _routed(stream: str, variant: str, seed: int) -> list[list[ChainTask]]:
    """The groups of a variant's plan, each task with the cell of its group's expert."""
    decisions = read_plan(PLANS / stream / f"{variant}.json")[seed]
    cells = CELLS / stream / variant / str(seed)
    genotypes = {decision.cell_from: _genotype(cells / f"{decision.cell_from}.json") for decision in decisions}
    return [
        [ChainTask(task, genotypes[decisions[task].cell_from], decisions[task].head_only) for task in group]
        for group in chains(decisions)
    ]


def _genotype(path: Path) -> dict[str, list[Any]]:
    """The genotype, as JSON has it, in a file of the stage ``search``."""
    try:
        return from_json(read_json(path)["genotype"]).to_json()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StageError(f"{path} holds no genotype ({error}); run the stage search again.") from None


def _write_run(folder: Path, stream: str, jobs: list[ChainJob], store: Store, child: Run) -> dict[str, Any]:
    """One learner and seed: predictions.npz, model.pt, settings.json, log.csv, steps.json; and its MLflow run.

    Returns its wall-clock seconds: of every step by task, and of the epochs of its log.
    """
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
    numbers = ("n_params", "n_state", "n_experts", "n_cells_searched")
    child.params({"learner": settings.learner, "method": settings.method, "seed": job.seed, "stream": stream})
    child.metrics({name: steps[name] for name in numbers} | {"seconds": sum(seconds.values())})
    for step in found.steps:
        rows = [row for row in found.log if row["task"] == step["task"]]
        child.curve(f"task{step['task']}", [{k: v for k, v in row.items() if k != "task"} for row in rows])
        child.metrics({"valid_accuracy": step["valid_accuracy"]}, step=step["task"])
    child.artifact(folder / "steps.json")
    child.artifact(folder / "log.csv")
    return {"steps": seconds, "epochs": epochs}


def _n_searches(stream: str, job: ChainJob) -> int:
    """Searches behind a run of PAR; fixed and random cells do not count."""
    return len(list((CELLS / stream / job.settings.learner / str(job.seed)).glob("*.csv")))


if __name__ == "__main__":
    run_stage("train", main)
