"""Delete from the store what params.yaml no longer uses: ``python -m pipeline.prune``.

What is used can only be known where the plans are: run it after ``dvc repro``, with the same params.yaml and device.
(`python -m par.steps.store prune` goes by age and needs neither.)
"""

from __future__ import annotations

import argparse

from par.config import Config, resolve_path
from par.settings import load
from par.steps.chain_job import prediction_key
from par.steps.store import DEFAULT_FOLDER, Store
from par.streams import load_stream
from pipeline import search, train
from pipeline.stage import StageError, mistakes_in_one_sentence


def main() -> None:
    """Entry point of ``python -m pipeline.prune``."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.prune", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--older-than-days", type=float, default=0.0, help="keep what is younger; default: %(default)g")
    options = parser.parse_args()
    with mistakes_in_one_sentence("prune"):
        store = Store(resolve_path(DEFAULT_FOLDER))
        used = used_keys(load(), store)
        n_entries, n_leftovers, n_bytes = store.prune(options.older_than_days, keep=used)
        print(f"{n_entries} unused entries and {n_leftovers} leftovers deleted, {n_bytes / 1e6:.1f} MB")


def used_keys(config: Config, store: Store) -> set[str]:
    """Keys of all entries that the stages of params.yaml would ask for.

    Raises:
        StageError: a plan, a cell or a step is missing: the candidates that an unfinished step has kept would be taken
            for unused.
    """
    steps, predictions = set(), set()
    try:
        for stream in config.streams:
            steps |= {job.key for job in search.jobs_of(config, stream).values()}
            for chains in train.jobs_of(config, stream).values():
                for job in chains:
                    tasks, keys = load_stream(job.directory).tasks, job.step_keys()
                    steps |= set(keys)
                    predictions |= {  # also those that another value of `predict` leaves out
                        prediction_key(key, tasks[planned.index])
                        for position, key in enumerate(keys)
                        for planned in job.chain[: position + 1]
                    }
    except FileNotFoundError as error:
        raise StageError(f"{error.filename} is missing; run `dvc repro` first. Nothing was deleted.") from None
    n_missing = len(steps - {path.stem for path in store.entries()})
    if n_missing:
        raise StageError(
            f"{n_missing} of the {len(steps)} steps of params.yaml are not in {store.folder}; run `dvc repro` first. "
            "Nothing was deleted."
        )
    return steps | predictions


if __name__ == "__main__":
    main()
