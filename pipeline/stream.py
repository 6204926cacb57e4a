"""Stage ``stream``: cut the tasks of a stream from their data sets, once per seed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tqdm import tqdm

from par.config import Config, resolve_path
from par.files import read_json, write_atomically
from par.streams import build_stream
from par.streams.findings import counts_by_kind, table
from par.streams.fingerprint import DEFAULT_FOLDER, Digests, contents
from pipeline.stage import FINGERPRINTS, STREAMS, StageError, run_stage
from pipeline.tracking import Run


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``data/streams/<stream>/<seed>/``."""
    out = STREAMS / stream

    def build(draft: Path) -> None:
        for seed in config.seeds:
            bar = partial(tqdm, desc=f"stream {stream} seed {seed}", unit="task")
            built = build_stream(stream, seed, resolve_path(config.data_dir), draft / str(seed), bar)
            for warning in built.warnings:
                print(warning, file=sys.stderr)
            rows = [{"task": task.index, "name": task.name, **task.counts} for task in built.tasks]
            run.dataset(f"{stream} seed {seed}", built.digest[:16], f"dvc:{out}/{seed}", rows)
            found = {f"found/{kind}": count for kind, count in counts_by_kind(built.findings).items()}
            run.metrics({"tasks": len(built.tasks), **found}, step=seed)
            if built.findings:
                run.text(f"findings_{seed}.txt", table(built.findings) + "\n")
        _check_fingerprint(config, stream)

    write_atomically(out, build)


def _check_fingerprint(config: Config, stream: str) -> None:
    """The sources are still those whose fingerprint stands for them in DVC (run by hand, the stage may have none).

    Raises:
        StageError: they have changed since stage ``fingerprints``; kept, these outputs would pass for the old data's.
    """
    path = FINGERPRINTS / f"{stream}.json"
    if not path.is_file():
        return
    found = contents(stream, resolve_path(config.data_dir), Digests(resolve_path(DEFAULT_FOLDER)))
    if read_json(path) != {alias: content.words for alias, content in found.items()}:
        raise StageError(
            f"the sources in {config.data_dir} are not those of {path}: they changed while they were read, or before "
            "by a run of this stage alone; run dvc repro again."
        )


if __name__ == "__main__":
    run_stage("stream", main)
