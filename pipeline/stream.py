"""Stage ``stream``: cut the tasks of a stream from their data sets, once per seed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tqdm import tqdm

from par.config import Config, resolve_path
from par.files import write_atomically
from par.streams import build_stream
from par.streams.findings import counts_by_kind, table
from pipeline.stage import STREAMS, run_stage
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

    write_atomically(out, build)


if __name__ == "__main__":
    run_stage("stream", main)
