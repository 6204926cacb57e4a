"""Steps computed through a real SLURM: the same bytes as from local workers, and none twice, whatever happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from par.files import write_tensors
from par.steps.lease import OWNER
from par.steps.store import Store
from tests.project import PARAMS, STAGES, environment, make_project, run, run_stage
from tests.slurm.cluster import Slurm

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

PATIENCE = 300.0  # seconds until something is computed, on a busy machine
# So many epochs that a job in its middle does not end in the seconds in which SLURM is asked to end it.
LONG = "checkpoint_minutes: 1.0e-9\n" + PARAMS.replace("epochs: 2\n  batch", "epochs: 150\n  batch")
CLUSTER = """
memory_gb: 1
poll_seconds: 1
hours: 1
"""


@pytest.fixture(scope="session")
def routed(tmp_path_factory) -> Path:
    """A project in which everything before the search is done, its cluster.yaml included."""
    folder = make_project(tmp_path_factory.mktemp("slurm"), params=LONG)
    (folder / "cluster.yaml").write_text(CLUSTER)
    for stage in STAGES[:4]:
        run_stage(folder, stage)
    return folder


@pytest.fixture(scope="session")
def searched(routed, tmp_path_factory) -> Path:
    """The project with its searches done on this machine."""
    folder = shutil.copytree(routed, tmp_path_factory.mktemp("searched") / "project")
    run_stage(folder, "search")
    return folder


@pytest.fixture(scope="session")
def local(searched, tmp_path_factory) -> Path:
    """The project with all steps computed by two workers of this machine."""
    folder = shutil.copytree(searched, tmp_path_factory.mktemp("local") / "project")
    (folder / "params.yaml").write_text(LONG.replace("workers: 1", "workers: 2"))
    run_stage(folder, "train")
    return folder


def start(project: Path, slurm: Slurm, *command: str) -> subprocess.Popen[str]:
    """Begin ``python -m pipeline.<command>``, whose jobs go to SLURM."""
    own = environment(project)
    path = os.pathsep.join((own["PATH"], slurm.environment["PATH"]))
    module, *arguments = command
    return subprocess.Popen(
        [sys.executable, "-m", f"pipeline.{module}", *arguments],
        cwd=project,
        env=own | slurm.environment | {"PAR_EXECUTOR": "slurm", "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_training(project: Path, slurm: Slurm) -> subprocess.Popen[str]:
    """Begin the stage ``train``."""
    return start(project, slurm, "train", "--stream", "tiny")


def finish(process: subprocess.Popen[str], check: bool = True) -> str:
    """What the stage has printed when it is done."""
    printed, _ = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0 or not check, printed
    return printed


def wait_until(what: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for something that happens while ``process`` runs."""
    end = time.monotonic() + PATIENCE
    while not what():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the stage has ended before:\n{process.communicate()[0]}")
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.05)


@contextmanager
def every_entry_written_once(project: Path) -> Iterator[None]:
    """Look at the store all the time; fail if a file of an entry was replaced by another."""
    store, versions, done = Store(project / ".par/store"), {}, threading.Event()

    def look() -> None:
        for entry in store.folder.glob("??/*.pt"):
            with suppress(FileNotFoundError):
                status = entry.stat()
                versions.setdefault(entry.name, set()).add((status.st_ino, status.st_mtime_ns))

    def keep_looking() -> None:
        while not done.wait(0.1):
            look()

    thread = threading.Thread(target=keep_looking)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    look()
    assert versions and all(len(seen) == 1 for seen in versions.values()), versions


def without_clocks(value: Any) -> Any:
    """An entry without the seconds that it took."""
    if isinstance(value, dict):
        return {key: without_clocks(item) for key, item in value.items() if key != "seconds"}
    return list(map(without_clocks, value)) if isinstance(value, list) else value


def entries(project: Path) -> dict[str, bytes]:
    """All entries of the store as bytes, without clocks."""
    store, found = Store(project / ".par/store"), {}
    for entry in store.entries():
        file = project / "entry"
        write_tensors(file, without_clocks(store.get(entry.stem)))
        found[entry.stem] = file.read_bytes()
        file.unlink()
    return found


def runs(project: Path) -> dict[str, bytes]:
    """Bytes of all files that the stage ``train`` leaves, predictions among them."""
    return {str(file.relative_to(project)): file.read_bytes() for file in sorted(project.glob("runs/**/*.*"))}


def assert_same(project: Path, local: Path) -> None:
    """The same predictions and the same store as from local workers, and nothing left over."""
    assert runs(project) == runs(local) != {} and any("predictions.npz" in name for name in runs(local))
    assert entries(project) == entries(local) != {}
    store = Store(project / ".par/store")
    assert not list(store.running()) and not list(store.folder.glob("??/.*"))


def running_jobs(slurm: Slurm) -> list[str]:
    """Numbers of the jobs that run, each its own also in an array."""
    return slurm.ask("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%A").split()


def job_in_the_middle(project: Path) -> str | None:
    """The number of a job whose step has saved itself at the end of an epoch, when others are done; None: not yet.

    The lease of the step names the job's process, and the process's environment its job.
    """
    store = Store(project / ".par/store")
    if len(list(store.entries())) > 4:
        for checkpoint in store.running():
            with suppress(OSError, AttributeError):  # it has just ended
                owner = OWNER.fullmatch(store.lease_path(checkpoint.stem).read_text())
                variables = Path(f"/proc/{owner['process']}/environ").read_text().split("\0")
                return next(line.partition("=")[2] for line in variables if line.startswith("SLURM_JOB_ID="))
    return None


def victim_of(project: Path) -> str:
    """The job to disturb: one that has just saved itself, so that it is neither starting nor about to end."""
    found: list[str] = []
    wait_until(lambda: found.extend(filter(None, [job_in_the_middle(project)])) or found)
    return found[0]


def test_fill_through_slurm_and_through_local_workers_makes_the_same_store_and_dvc_repro_assembles(slurm, tmp_path):
    local, project = (make_project(tmp_path / name, params=LONG) for name in ("local", "slurm"))
    for folder in (local, project):
        run(folder, "dvc", "init", "-q", "--no-scm")
        (folder / "cluster.yaml").write_text(CLUSTER)
    run(local, sys.executable, "-m", "pipeline.fill", "--executor", "local")
    with every_entry_written_once(project):
        finish(start(project, slurm, "fill"))
        assert "nothing to do: all 11 steps" in finish(start(project, slurm, "fill"))
        for folder in (local, project):
            printed = run(folder, "dvc", "repro", "train@tiny").stdout
            assert "steps computed: 0, from the store: 2" in printed and "computed: 0, from the store: 9" in printed
    assert_same(project, local)
    assert not slurm.ask("squeue", "--noheader").strip()


def test_a_fill_that_is_killed_is_attached_to(slurm, tmp_path):
    project = make_project(tmp_path / "slurm", params=LONG)
    run(project, "dvc", "init", "-q", "--no-scm")
    (project / "cluster.yaml").write_text(CLUSTER)
    with every_entry_written_once(project):
        process = start(project, slurm, "fill")
        wait_until(lambda: any(Store(project / ".par/store").running()), process)
        process.kill()
        process.communicate()
        queued = arrays(slurm)
        again, seen = start(project, slurm, "fill"), set()
        while again.poll() is None:
            seen |= arrays(slurm)
            time.sleep(0.2)
        finish(again)
    assert seen and seen <= queued, "the second fill has submitted anew"
    assert "nothing to do" in finish(start(project, slurm, "fill"))


def arrays(slurm: Slurm) -> set[str]:
    """Numbers of the arrays that wait or run."""
    return set(slurm.ask("squeue", "--noheader", "--format=%F").split())


@pytest.fixture
def training(searched, slurm, tmp_path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """The project in the middle of its training on SLURM."""
    project = shutil.copytree(searched, tmp_path / "project")
    with every_entry_written_once(project):
        process = start_training(project, slurm)
        wait_until(lambda: job_in_the_middle(project), process)
        try:
            yield project, process
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
            slurm.ask("scancel", f"--user={os.getuid()}")


def test_a_cancelled_job_is_one_sentence_and_done_by_the_next_run(training, local, slurm):
    project, process = training
    # at once: submitit does not heed SIGTERM, and two seconds later the job may be done
    slurm.ask("scancel", "--full", "--signal=KILL", victim_of(project))
    printed = finish(process, check=False)
    assert process.returncode == 1 and "left the queue without a result" in printed, printed
    assert "Traceback" not in printed
    finish(start_training(project, slurm))
    assert_same(project, local)


def test_a_requeued_job_goes_on_where_it_was(training, local, slurm):
    project, process = training
    victim = victim_of(project)
    slurm.ask("scontrol", "requeue", victim)
    start_now(slurm, victim)
    finish(process)
    assert_same(project, local)


def start_now(slurm: Slurm, job: str) -> None:
    """SLURM lets a requeued job wait for two minutes."""

    def has_begun() -> bool:
        shown = slurm.ask("scontrol", "show", "job", job)
        if "Restarts=0" in shown:  # it has not been requeued yet
            return False
        slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)  # refused while the old one ends
        return "JobState=PENDING" not in shown

    wait_until(has_begun)


def test_a_preempted_job_puts_itself_into_the_queue_again(training, local, slurm):
    """The signal that comes before a preemption or the end of a job's time is submitit's to handle."""
    project, process = training
    victim = victim_of(project)
    slurm.ask("scancel", "--signal=USR2", victim, check=False)  # it may be gone before scancel has an answer
    start_now(slurm, victim)
    finish(process)
    assert_same(project, local)


def test_a_node_drained_in_the_middle_finishes_its_jobs_and_the_others_wait(training, local, slurm):
    project, process = training
    node = slurm.ask("sinfo", "--noheader", "--format=%n").strip()
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    wait_until(lambda: "drained" in slurm.ask("sinfo", "--noheader", "--format=%T"), process)
    assert not running_jobs(slurm)
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    finish(process)
    assert_same(project, local)


def test_a_controller_started_again_in_the_middle_is_waited_for(training, local, slurm):
    project, process = training
    slurm.stop_controller()
    time.sleep(5)
    slurm.start_controller()
    printed = finish(process)
    assert "Traceback" not in printed
    assert_same(project, local)


def test_a_failed_node_gives_its_jobs_to_the_queue(training, local, slurm):
    project, process = training
    victims = running_jobs(slurm)
    node = slurm.ask("sinfo", "--noheader", "--format=%n").strip()
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    wait_until(lambda: not running_jobs(slurm), process)
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)  # it may have come back by itself
    for victim in victims:
        start_now(slurm, victim)
    finish(process)
    assert_same(project, local)
