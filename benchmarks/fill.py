"""What filling the store costs beside the computing: `python -m benchmarks.fill [workers] [full]`.

- workers: the chains of demo_split learned by `workers: 1` and by `workers: 2`, twice each in turn (goal: 1.7 on two
  idle cores; the processes start within the time).
- full: how long it takes to find that a store of 5,400 steps lacks nothing (goal, with the start and what dvc looks at:
  10 s). Streams, plans and steps are made for it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from par.config import Config, Recipe
from par.settings import load
from par.steps.chain_job import ChainJob, prediction_key
from par.steps.store import Store, write_entry
from par.steps.workers import run_jobs
from par.streams import build_stream, load_stream
from pipeline import train
from pipeline.stage import STREAMS
from pipeline.work import survey

SINGLE = ("finetune", "independent", "ewc", "mas", "lwf", "er", "agem", "gpm", "hat")  # need no plan


def _built(stream: str, seeds: tuple[int, ...], methods: tuple[str, ...], epochs: int) -> Config:
    """A configuration whose streams are in the current folder."""
    for seed in seeds:
        build_stream(stream, seed, Path("data/sources"), STREAMS / stream / str(seed))
    config = replace(load(), streams=(stream,), seeds=seeds, methods={name: {} for name in methods}, predict="ends")
    recipe = replace(Recipe(), epochs=epochs, batch_size=32)
    return replace(config, recipe=recipe, device="cpu", numerics="native")


def measure_workers() -> None:
    config = _built("demo_split", (0, 1), ("finetune", "independent", "ewc"), 12)
    jobs = [job for chains in train.jobs_of(config, "demo_split").values() for job in chains]
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for number in range(4):
        workers = 1 + number % 2
        started = time.perf_counter()
        outcome = run_jobs(jobs, Store(f"store{number}"), workers, f"workers: {workers}")
        assert not outcome.failures, outcome.failures
        seconds[workers].append(time.perf_counter() - started)
    one, two = min(seconds[1]), min(seconds[2])
    print(f"workers: 2 is {one / two:.2f} times as fast as 1 ({two:.1f} s and {one:.1f} s for {len(jobs)} chains)")


def measure_full() -> None:
    config, store = _built("demo_long", tuple(range(30)), SINGLE, 1), Store("store")
    os.fsync = lambda handle: None  # type: ignore[assignment]  # of files that nobody will miss
    for chains in train.jobs_of(config, "demo_long").values():
        for job in chains:
            _pretend(job, store)
    wall, busy = time.perf_counter(), time.process_time()
    found = survey(config, store)
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    assert not found.work, found.work[0]
    print(f"full: {found.n_steps} steps found complete in {wall:.1f} s, {busy:.1f} s of them on the processor")


def _pretend(job: ChainJob, store: Store) -> None:
    """Entries as if the chain were learned; predictions are not read, so they may be empty."""
    tasks = load_stream(job.directory).tasks
    for position, key in enumerate(job.step_keys()):
        write_entry(store.path(key), {"info": {"seconds": 1.0}})
        for index in job.tested_after(position):
            path = store.path(prediction_key(key, tasks[index]))
            path.parent.mkdir(exist_ok=True)
            path.touch()


PARTS = {"workers": measure_workers, "full": measure_full}


def main() -> None:
    """Run the parts, each in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"among {', '.join(PARTS)}; default: all")
    params, parts = Path("params.yaml").read_text(encoding="utf-8"), parser.parse_args().parts or PARTS
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("params.yaml").write_text(params, encoding="utf-8")
            PARTS[part]()


if __name__ == "__main__":
    main()
