"""Fill the store with all that params.yaml needs, of all streams at once: ``python -m pipeline.fill``.

Streams, features, prototypes and plans come first, by ``dvc repro`` of their stages; then every search and chain that
the store lacks, the longest first, each chain of PAR after its own search. Afterwards ``dvc repro`` assembles.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from par.config import Config, resolve_path
from par.settings import load
from par.steps import slurm
from par.steps.cluster import EXECUTOR, EXECUTORS, Cluster, cluster_in_use
from par.steps.estimate import Throughput
from par.steps.jobs import Planned
from par.steps.memory import GB, peak_bytes, shortage
from par.steps.schedule import Timed, simulate
from par.steps.slots import Workers, workers_of
from par.steps.store import DEFAULT_FOLDER, Store
from par.steps.workers import run_jobs
from pipeline.stage import StageError, check_outcome, device_and_precision, mistakes_in_one_sentence
from pipeline.work import Survey, Work, survey

HOUR = 3600.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``python -m pipeline.fill``."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.fill", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plan", action="store_true", help="print what would be computed, with hours, and stop")
    parser.add_argument("--params", default="params.yaml", help="the params file that --plan is for (%(default)s)")
    parser.add_argument("--executor", choices=EXECUTORS, help=f"where jobs run (default: ${EXECUTOR}, else local)")
    parser.add_argument(
        "--on-interrupt",
        choices=("leave", "cancel"),
        default="leave",
        help="what Ctrl-C does with the jobs of a cluster; left ones are attached to next time (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.params != "params.yaml" and not options.plan:
        parser.error("--params is for --plan alone: everything else goes by params.yaml")
    if options.executor:
        os.environ[EXECUTOR] = options.executor  # of the stages that dvc runs for us too
    with mistakes_in_one_sentence("fill"):
        config, store, cluster = load(options.params), Store(resolve_path(DEFAULT_FOLDER)), cluster_in_use()
        workers = workers_of(config.workers, config.workers_per_device, device_and_precision(config)[0])
        if options.plan:
            found = survey(config, store)
            print(plan_table(found, cluster.parallelism if cluster else workers.count))
            _warn_of_memory(found, workers, config, cluster)
        else:
            _fill(config, store, workers, cluster, options.on_interrupt == "cancel")


def _fill(config: Config, store: Store, workers: Workers, cluster: Cluster | None, cancel: bool) -> None:
    _prepare(config)
    found = survey(config, store)
    if not found.work:
        print(f"nothing to do: all {found.n_steps} steps are in {store.folder}.")
        return
    hours = sum(work.seconds(found.throughput) for work in found.work) / HOUR
    n_steps = sum(work.steps for work in found.work)
    print(
        f"{n_steps} of {found.n_steps} steps to compute in {len(found.work)} jobs, about {hours:.1f} h of one worker."
    )
    _warn_of_memory(found, workers, config, cluster)
    jobs = [work.planned(found.throughput) for work in found.work]
    try:
        outcome = run_jobs(jobs, store, workers, "fill", cluster)
    except KeyboardInterrupt:
        if cluster is not None:
            _interrupted(jobs, store, cancel)
        raise
    check_outcome(outcome)
    print("Now `dvc repro` assembles.")


def _prepare(config: Config) -> None:
    """Streams, features, prototypes and plans.

    Raises:
        StageError: one of their stages failed.
    """
    stages = [f"route@{stream}" for stream in config.streams]
    done = subprocess.run([sys.executable, "-m", "dvc", "repro", *stages])
    if done.returncode:
        raise StageError("`dvc repro` of the stages up to route failed, see above; the store was not filled.")


def _warn_of_memory(found: Survey, workers: Workers, config: Config, cluster: Cluster | None) -> None:
    peaks = [peak_bytes(work.kind) for work in found.work]
    if (sentence := shortage(peaks, workers, device_and_precision(config)[0], cluster)) is not None:
        print(f"fill: {sentence}", file=sys.stderr)


def _interrupted(jobs: Sequence[Planned], store: Store, cancel: bool) -> None:
    if cancel:
        print(f"\nfill: {slurm.cancel(jobs, store)} jobs cancelled.", file=sys.stderr)
    else:
        print("\nfill: the jobs stay in the queue; run it again to attach to them.", file=sys.stderr)


def plan_table(found: Survey, n_workers: int) -> str:
    """What is lacking, a line a stream and method, with sums and what the hours rest on."""
    rows: list[tuple[str, ...]] = [("stream", "method", "steps", "images", "hours", "GB", "by")]
    streams = dict.fromkeys(work.stream for work in found.work)
    for stream in streams:
        of_stream = [work for work in found.work if work.stream == stream]
        for learner in dict.fromkeys(work.learner for work in of_stream):
            rows.append(_row(stream, learner, [w for w in of_stream if w.learner == learner], found.throughput))
        rows.append(_row(stream, "all", of_stream, found.throughput))
    rows.append(_row("all", "all", found.work, found.throughput))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if 1 < n < 6 else cell.ljust(width) for n, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]
    return "\n".join([*(line.rstrip() for line in lines), "", *_notes(found, n_workers)])


def _row(stream: str, learner: str, work: Sequence[Work], throughput: Throughput) -> tuple[str, ...]:
    hours = sum(one.seconds(throughput) for one in work) / HOUR
    basis = " and ".join(sorted({throughput.basis(one.kind) for one in work}))
    images = sum(one.images for one in work)
    peak = max((peak_bytes(one.kind) for one in work), default=0) / GB
    return stream, learner, f"{sum(one.steps for one in work):,}", f"{images:,}", f"{hours:,.2f}", f"{peak:.1f}", basis


def _notes(found: Survey, n_workers: int) -> list[str]:
    """What to know about the numbers."""
    schedule = simulate([Timed(w.key, w.after, w.seconds(found.throughput)) for w in found.work], n_workers)
    lines = [
        "Hours of one worker; steps that learners share are the first one's. Early stops can only shorten them.",
        "GB: of memory, a worker at its fullest, estimated by batch, pixels and width; less in bfloat16.",
        f"On {n_workers} workers about {schedule.makespan / HOUR:,.2f} h, of which the longest search and chain take "
        f"{schedule.critical / HOUR:,.2f} h.",
    ]
    bases = {found.throughput.basis(work.kind) for work in found.work}
    if bases - {"measured"}:
        lines.append(
            "table: nothing alike was measured here, so the hours are those of one thread of a processor with AVX2, or "
            "a guess from them for a GPU (par/steps/throughput.yaml); another machine may need a third or three times."
        )
    if found.outlined:
        lines.append(
            f"Not built, so sizes are by definition and every task of PAR is taken to be searched and to get an expert "
            f"of its own: {', '.join(found.outlined)}."
        )
    if found.unknown:
        lines.append(f"Not built, and unknown before their data sets are read: {', '.join(found.unknown)}.")
    return lines


if __name__ == "__main__":
    main()
