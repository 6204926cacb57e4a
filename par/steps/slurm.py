"""Jobs on a SLURM cluster, through submitit: arrays that fill the store, which is all that they share with us.

What was submitted lies in ``jobs/`` of the store, a folder an array: the keys of its jobs (written before it is
submitted, under the array's name, so that a kill in between loses nothing), submitit's pickles and logs, and for each
job a report of how far it is or what became of it. Whoever wants a job that is in the scheduler's queue attaches to it.
The number of calls to the scheduler does not grow with the number of jobs, only with arrays of ``max_array``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from par.files import read_json, write_json
from par.schema import ConfigError, to_plain
from par.steps.cluster import Cluster
from par.steps.jobs import Failure, Job, Outcome, Paced, Planned, Result, attempt, by_weight, computing_on_one_thread
from par.steps.lease import Lease
from par.steps.routed_chain import lacking
from par.steps.store import Store

KEYS = "keys.json"
REPORT_SECONDS = 10.0
MAX_TIMEOUTS = 100  # of one job, each of which goes on where it was; an epoch that outlasts the limit would never end
ABSENT_POLLS = 2  # a job has ended when it is out of the queue this often in a row: its report may be late on the disk

Place = tuple[str, int]  # name of an array and index of a job in it


@dataclass(frozen=True)
class Queued:
    """A job in the scheduler's queue: the number of its array, and whether it has been started."""

    number: str
    is_running: bool


@dataclass(frozen=True)
class Task:
    """What submitit calls on a node."""

    def __call__(self, job: Job, store: Store, report: Path) -> None:
        """Run a job; leave with 1 if it fails, so that the scheduler starts none that waits for it."""
        images = 0

        def hand_on(n_images: int) -> None:
            nonlocal images
            images += n_images
            write_json(report, {"images": images, "result": None})

        hand_on(0)
        with computing_on_one_thread():
            result = attempt(job, store, Paced(hand_on, REPORT_SECONDS).advance)
        write_json(report, {"images": job.cost(), "result": to_plain(result)})
        if result.failure is not None:
            print(result.failure.text, file=sys.stderr)
            raise SystemExit(1)

    def checkpoint(self, *arguments: Any) -> Any:
        """For submitit, before a job is preempted or out of time: put it into the queue again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def run(jobs: Sequence[Planned], store: Store, cluster: Cluster, title: str) -> Outcome:
    """Submit what is neither in the store nor in the queue, and wait for all of it.

    Raises:
        ConfigError: submitit or SLURM is not there, or the scheduler refuses.
    """
    store = Store(store.folder.absolute())
    present = {path.stem for path in store.entries()}
    found = {planned.key: lacking(planned.job, store, present) for planned in jobs}
    results = [Result(p.job.label, 0, found[p.key].n_steps) for p in jobs if not found[p.key].entries]
    wanted = [planned for planned in jobs if found[planned.key].entries]
    places = submit(wanted, store, cluster)
    return Outcome.of(results + _watch(wanted, places, store, cluster, title))


def submit(jobs: Sequence[Planned], store: Store, cluster: Cluster) -> dict[str, Place]:
    """Where each job is: those in the queue stay where they are, the others are submitted, the heaviest first.

    Raises:
        ConfigError: see :func:`run`.
    """
    if not jobs:
        return {}
    folder = _folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    with Lease(folder / "submit.lease"):
        queue = _queue()
        _tidy(folder, queue)
        known = {key: place for place, key in _submitted(folder) if place in queue}
        places = {planned.key: known[planned.key] for planned in jobs if planned.key in known}
        new = by_weight([planned for planned in jobs if planned.key not in places])
        for head, followers in _with_followers(new, cluster.max_array):
            name, number = _submit(head, store, cluster)
            places |= {planned.key: (name, index) for index, planned in enumerate(head)}
            for layer in followers:
                name, _ = _submit(layer, store, cluster, f"aftercorr:{number}")
                places |= {planned.key: (name, index) for index, planned in enumerate(layer)}
        free = [p for p in new if p.key not in places and p.after not in known]
        for chunk in _chunks(free, cluster.max_array):
            name, _ = _submit(chunk, store, cluster)
            places |= {planned.key: (name, index) for index, planned in enumerate(chunk)}
        for late in _chunks([p for p in new if p.key not in places and p.after in known], cluster.max_array):
            numbers = sorted({queue[known[planned.after]].number for planned in late if planned.after is not None})
            name, _ = _submit(late, store, cluster, "afterany:" + ":".join(numbers))
            places |= {planned.key: (name, index) for index, planned in enumerate(late)}
    return places


def _with_followers(new: Sequence[Planned], size: int) -> Iterator[tuple[list[Planned], list[list[Planned]]]]:
    """Arrays of jobs that wait for none of the queue, each with the arrays of the jobs that wait for one of its jobs.

    SLURM lets job i of an array wait for job i of another (``aftercorr``). So the jobs with most followers come first:
    their first followers are an array that matches them from index 0 on, their second followers another, ...
    """
    keys = {planned.key for planned in new}
    behind: dict[str, list[Planned]] = {}
    for planned in new:
        if planned.after in keys:
            behind.setdefault(planned.after, []).append(planned)
    heads = [planned for planned in new if planned.key in behind]
    for head in _chunks(sorted(heads, key=lambda planned: -len(behind[planned.key])), size):
        depth = len(behind[head[0].key])
        yield head, [[behind[p.key][n] for p in head if n < len(behind[p.key])] for n in range(depth)]


def _chunks(jobs: Sequence[Planned], size: int) -> Iterator[list[Planned]]:
    for start in range(0, len(jobs), size):
        yield list(jobs[start : start + size])


def _submit(jobs: Sequence[Planned], store: Store, cluster: Cluster, dependency: str | None = None) -> tuple[str, str]:
    """Submit an array; its name and its number."""
    try:
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError
    except ModuleNotFoundError:
        raise ConfigError("The executor slurm needs submitit; install it with: pip install -e '.[slurm]'") from None
    name = f"par-{uuid.uuid4().hex[:12]}"
    folder = _folder(store) / name
    write_json(folder / KEYS, [planned.key for planned in jobs])
    waits = {} if dependency is None else {"dependency": dependency, "kill-on-invalid-dep": "yes"}
    try:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=MAX_TIMEOUTS)
        executor.update_parameters(
            job_name=name,
            partition=cluster.partition,
            account=cluster.account,
            constraint=cluster.constraint,
            gpus_per_node=cluster.gpus or None,
            cpus_per_task=cluster.cpus,
            mem=f"{round(1024 * cluster.memory_gb)}MB",
            time=max(1, round(60 * cluster.hours)),
            array_parallelism=cluster.parallelism,
            setup=list(cluster.setup),
            stderr_to_stdout=True,
            additional_parameters=dict(cluster.sbatch) | waits,
        )
        reports = [_report(store, (name, index)) for index in range(len(jobs))]
        submitted = executor.map_array(Task(), [p.job for p in jobs], [store] * len(jobs), reports)
    except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(f"SLURM does not take {len(jobs)} jobs ({error}); see cluster.yaml.") from None
    return name, submitted[0].job_id.partition("_")[0]


def cancel(jobs: Iterable[Planned], store: Store) -> int:
    """Take jobs out of the queue, running ones too; returns how many there were.

    Raises:
        ConfigError: the scheduler does not answer.
    """
    queue, keys = _queue(), {planned.key for planned in jobs}
    found = [(place, queue[place]) for place, key in _submitted(_folder(store)) if place in queue and key in keys]
    if found:
        by_array: dict[str, list[int]] = {}
        for (_, index), queued in found:
            by_array.setdefault(queued.number, []).append(index)
        _ask("scancel", *(f"{number}_[{','.join(map(str, indices))}]" for number, indices in by_array.items()))
    return len(found)


def _watch(
    jobs: Sequence[Planned], places: Mapping[str, Place], store: Store, cluster: Cluster, title: str
) -> list[Result]:
    """Show how far the jobs are until all have ended; what became of them."""
    results: dict[str, Result] = {}
    absent: dict[str, int] = {}  # polls since a job without a result was in the queue
    bar: tqdm | None = None
    while True:
        queue, images = _queue_or_none(), 0
        for name in {places[key][0] for key, n_polls in absent.items() if n_polls and key not in results}:
            with tempfile.TemporaryFile(dir=_folder(store) / name):
                pass  # a client of NFS that creates a file learns what else is new in the folder
        for planned in jobs:
            if planned.key in results:
                images += planned.job.cost()
                continue
            place = places[planned.key]
            report = _read_report(store, place)
            images += report["images"]
            if report["result"] is not None:
                results[planned.key] = _result(report["result"])
            elif queue is not None:
                absent[planned.key] = 0 if place in queue else absent.get(planned.key, 0) + 1
                if absent[planned.key] >= ABSENT_POLLS:
                    results[planned.key] = Result(planned.job.label, failure=_lost(store, place))
        if bar is None:
            total = sum(planned.job.cost() for planned in jobs)
            bar = tqdm(total=total, initial=images, desc=title, unit="img", unit_scale=True)
        bar.set_postfix_str(_counts(jobs, places, results, queue or {}), refresh=False)
        bar.update(images - bar.n)
        if len(results) == len(jobs):
            bar.close()
            return list(results.values())
        time.sleep(cluster.poll_seconds)


def _counts(
    jobs: Sequence[Planned], places: Mapping[str, Place], results: Mapping[str, Result], queue: Mapping[Place, Queued]
) -> str:
    open_places = {places[planned.key] for planned in jobs if planned.key not in results}
    n_running = sum(queue[place].is_running for place in open_places if place in queue)
    n_failed = sum(result.failure is not None for result in results.values())
    return (
        f"{len(open_places) - n_running} waiting, {n_running} running, {len(results) - n_failed} done, "
        f"{n_failed} failed"
    )


def _queue() -> dict[Place, Queued]:
    """Our jobs that wait or run, in one call."""
    lines = _ask("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%j|%K|%F|%T").splitlines()
    queue = {}
    for name, index, number, state in (line.strip().split("|") for line in lines):
        if name.startswith("par-"):
            queue[name, int(index) if index.isdecimal() else 0] = Queued(number, state != "PENDING")
    return queue


def _queue_or_none() -> dict[Place, Queued] | None:
    """None where the scheduler does not answer, as while it is started again."""
    try:
        return _queue()
    except ConfigError as error:
        tqdm.write(f"{error} Asking again.", file=sys.stderr)
        return None


def _ask(*command: str) -> str:
    """What a command of SLURM prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise ConfigError(f"The executor slurm needs {command[0]}, which is not on this machine's PATH.") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip() or f"exit code {error.returncode}"
        raise ConfigError(f"{command[0]} did not answer ({reason}).") from None
    return done.stdout


def _folder(store: Store) -> Path:
    return store.folder.absolute() / "jobs"


def _report(store: Store, place: Place) -> Path:
    name, index = place
    return _folder(store) / name / f"{index}.json"


def _read_report(store: Store, place: Place) -> dict[str, Any]:
    try:
        return read_json(_report(store, place))
    except FileNotFoundError:
        return {"images": 0, "result": None}


def _result(plain: dict[str, Any]) -> Result:
    failure = plain.pop("failure")
    return Result(**plain, failure=failure and Failure(**failure))


def _lost(store: Store, place: Place) -> Failure:
    """Why a job ended without a word: the end of its log."""
    name, index = place
    is_array = len(read_json(_folder(store) / name / KEYS)) > 1
    logs = sorted((_folder(store) / name).glob(f"*_{index}_0_log.out" if is_array else "*_log.out"))
    lines = logs[-1].read_text(errors="replace").strip().splitlines() if logs else []
    last = f"; the last line of {logs[-1]}: {lines[-1]}" if lines else f"; it left no log in {_folder(store) / name}"
    return Failure(f"it left the queue without a result (cancelled, out of time or memory, or its node failed){last}")


def _submitted(folder: Path) -> Iterator[tuple[Place, str]]:
    """Where jobs were submitted to, and their keys."""
    for path in sorted(folder.glob(f"*/{KEYS}")):
        for index, key in enumerate(read_json(path)):
            yield (path.parent.name, index), key


def _tidy(folder: Path, queue: Collection[Place]) -> None:
    """Delete what is left of arrays of which no job is in the queue and none has failed."""
    live = {name for name, _ in queue}
    for path in folder.glob(f"*/{KEYS}"):
        if path.parent.name not in live:
            reports = [path.with_name(f"{index}.json") for index in range(len(read_json(path)))]
            results = [read_json(report)["result"] for report in reports if report.is_file()]
            if len(results) == len(reports) and all(result and result["failure"] is None for result in results):
                shutil.rmtree(path.parent)
