"""Steps computed through a real SLURM: the same bytes as from local workers, and none twice, whatever happens.

A job that is disturbed stands still in the middle of a step (SIGSTOP) until it has been, however fast the machine is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from par.files import write_tensors
from par.steps.lease import OWNER
from par.steps.store import Store, read_entry, write_entry
from tests.project import PARAMS, environment, make_project, run
from tests.slurm.cluster import Slurm

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

PATIENCE = 300.0  # seconds until something is computed, on a busy machine
MARK = 1e6  # seconds
# Every epoch ends with a checkpoint, and a step has so many of them that one is found in its middle.
LONG = "checkpoint_minutes: 1.0e-9\n" + (
    PARAMS.replace("epochs: 2\n  batch", "epochs: 40\n  batch")
    .replace("  independent: {}\n", "  ewc: {}\n")
    .replace("  par: {}\n", "  par: {recipe: {epochs: 2}}\n")
)
WITHOUT_PAR = LONG.replace("  par: {recipe: {epochs: 2}}\n", "")
CLUSTER = """
memory_gb: 1
poll_seconds: 1
hours: 1
"""


@pytest.fixture(scope="session")
def routed(tmp_path_factory) -> Path:
    """A project in which everything before the search is done, its cluster.yaml included."""
    folder = make_project(tmp_path_factory.mktemp("slurm") / "project", params=LONG)
    (folder / "cluster.yaml").write_text(CLUSTER)
    run(folder, "dvc", "init", "-q", "--no-scm")
    run(folder, "dvc", "repro", "-q", "route@tiny")
    return folder


@pytest.fixture(scope="session")
def local(routed, tmp_path_factory) -> Path:
    """The project with all steps computed by two workers of this machine."""
    folder = shutil.copytree(routed, tmp_path_factory.mktemp("local") / "project")
    (folder / "params.yaml").write_text(LONG.replace("workers: 1", "workers: 2"))
    run(folder, sys.executable, "-m", "pipeline.fill", "--executor", "local")
    run(folder, "dvc", "repro", "train@tiny")
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
        time.sleep(0.01)


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
    """The same predictions and the same entries as from local workers, who may have computed more, and no leftovers."""
    for found, expected in ((runs(project), runs(local)), (entries(project), entries(local))):
        assert found == {name: expected.get(name) for name in found} != {}
    assert any("predictions.npz" in name for name in runs(project))
    store = Store(project / ".par/store")
    assert not list(store.running()) and not list(store.folder.glob("??/.*"))


def running_jobs(slurm: Slurm) -> list[str]:
    """Numbers of the jobs that run, each its own also in an array."""
    return slurm.ask("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%A").split()


@dataclass(frozen=True)
class Victim:
    """A job of SLURM whose process stands still in the middle of the step ``key``."""

    job: str
    process: psutil.Process
    store: Store
    key: str
    _is_let_go: threading.Event = field(default_factory=threading.Event)

    def stand_still(self) -> None:
        """Stop the process until it is let go: SLURM lets one go on for seconds (SIGCONT) before it kills it."""
        with suppress(psutil.NoSuchProcess):
            while not self._is_let_go.wait(0.005):
                self.process.suspend()
            self.process.resume()

    def is_in_the_middle(self) -> bool:
        """Whether the step has saved itself and is not done."""
        return self.store.running_path(self.key).exists() and not self.store.path(self.key).exists()

    def let_go(self) -> None:
        """Let the process go on."""
        self._is_let_go.set()

    def mark(self) -> None:
        """Note in the checkpoint of the process, when it has ended, that the step took very long up to there."""
        self.process.wait(PATIENCE)
        assert self.is_in_the_middle()
        path = self.store.running_path(self.key)
        checkpoint = read_entry(path)
        write_entry(path, checkpoint | {"seconds": checkpoint["seconds"] + MARK})

    def went_on_from_the_mark(self) -> bool:
        """Whether whoever has finished the step went on from the checkpoint."""
        return self.store.existing(self.key)["info"]["seconds"] > MARK


def found_victim(project: Path, slurm: Slurm) -> Victim | None:
    """A job that has been stopped in the middle of a step; None: there is none at the moment.

    The lease of the step names the job's process, and the process's environment its job.
    """
    store = Store(project / ".par/store")
    for checkpoint in store.running():
        with suppress(OSError, AttributeError, psutil.Error):  # it has just ended
            owner = OWNER.fullmatch(store.lease_path(checkpoint.stem).read_text())
            process = psutil.Process(int(owner["process"]))
            variables = process.environ()
            if variables.get("SLURM_CONF") != slurm.environment["SLURM_CONF"]:
                continue
            # by its plain number SLURM 22.05 does not find a job of an array when the array's other jobs have ended
            number = f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
            victim = Victim(number, process, store, checkpoint.stem)
            process.suspend()
            while process.status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)
            if victim.is_in_the_middle():
                return victim
            process.resume()
    return None


@contextmanager
def held(project: Path, slurm: Slurm, stage: subprocess.Popen[str]) -> Iterator[Victim]:
    """A job that stands still in the middle of a step until it is let go or killed."""
    found: list[Victim] = []
    wait_until(lambda: found.extend(filter(None, [found_victim(project, slurm)])) or found, stage)
    [victim] = found
    keeper = threading.Thread(target=victim.stand_still)
    keeper.start()
    try:
        yield victim
    finally:
        victim.let_go()
        keeper.join()


def test_a_fill_that_is_killed_is_attached_to_and_ends_in_the_store_of_local_workers(routed, local, slurm, tmp_path):
    project = shutil.copytree(routed, tmp_path / "project")
    with every_entry_written_once(project):
        process = start(project, slurm, "fill")
        with held(project, slurm, process) as victim:
            process.kill()
            process.communicate()
            queued = arrays(slurm)
            again = start(project, slurm, "fill")
            assert any("running" in line for line in again.stdout), "the second fill has not shown how far it is"
            assert arrays(slurm) == queued, "the second fill has submitted anew"
            victim.let_go()
            finish(again)
        assert "nothing to do: all 11 steps" in finish(start(project, slurm, "fill"))
        printed = run(project, "dvc", "repro", "train@tiny").stdout
        assert "steps computed: 0, from the store: 2" in printed and "computed: 0, from the store: 9" in printed
    assert_same(project, local)
    assert set(entries(project)) == set(entries(local)) and set(runs(project)) == set(runs(local))
    assert not slurm.ask("squeue", "--noheader").strip()


def arrays(slurm: Slurm) -> set[str]:
    """Numbers of the arrays that wait or run."""
    return set(slurm.ask("squeue", "--noheader", "--format=%F").split())


@pytest.fixture
def project(routed, tmp_path) -> Iterator[Path]:
    """The project with two jobs to do, chains of three steps."""
    project = shutil.copytree(routed, tmp_path / "project")
    (project / "params.yaml").write_text(WITHOUT_PAR)
    with every_entry_written_once(project):
        yield project


@contextmanager
def training(project: Path, slurm: Slurm) -> Iterator[tuple[subprocess.Popen[str], Victim]]:
    """The stage ``train`` and one of its jobs, in the middle of a step."""
    process = start_training(project, slurm)
    try:
        with held(project, slurm, process) as victim:
            yield process, victim
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
            slurm.ask("scancel", f"--user={os.getuid()}")


def test_a_cancelled_job_is_one_sentence_and_done_by_the_next_run(project, local, slurm):
    with training(project, slurm) as (process, victim):
        slurm.ask("scancel", victim.job)
        victim.mark()
        printed = finish(process, check=False)
    assert process.returncode == 1 and "left the queue without a result" in printed, printed
    assert "Traceback" not in printed
    finish(start_training(project, slurm))
    assert victim.went_on_from_the_mark()
    assert_same(project, local)


def test_a_requeued_job_goes_on_where_it_was(project, local, slurm):
    with training(project, slurm) as (process, victim):
        slurm.ask("scontrol", "requeue", victim.job)
        victim.mark()
        start_now(slurm, victim.job)
        finish(process)
    assert victim.went_on_from_the_mark()
    assert_same(project, local)


def start_now(slurm: Slurm, job: str) -> None:
    """SLURM lets a requeued job wait for two minutes."""

    def has_begun() -> bool:
        shown = slurm.ask("scontrol", "show", "job", job)
        if "Restarts=0" in shown:  # it has not been requeued yet
            return False
        slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)  # refused while the old one ends
        return "JobState=PENDING" not in shown and "JobState=COMPLETING" not in shown

    wait_until(has_begun)


def test_a_preempted_job_puts_itself_into_the_queue_again(project, local, slurm):
    """The signal that comes before a preemption or the end of a job's time is submitit's to handle."""
    with training(project, slurm) as (process, victim):
        slurm.ask("scancel", "--signal=USR2", victim.job)
        victim.let_go()
        victim.mark()
        start_now(slurm, victim.job)
        finish(process)
    assert victim.went_on_from_the_mark()
    assert_same(project, local)


def test_a_node_drained_in_the_middle_finishes_its_jobs_and_the_others_wait(project, local, slurm):
    (project / "cluster.yaml").write_text(CLUSTER + "cpus: 2\n")  # one job at a time
    node = slurm.ask("sinfo", "--noheader", "--format=%n").strip()
    with training(project, slurm) as (process, victim):
        slurm.ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
        victim.let_go()
        wait_until(lambda: "drained" in slurm.ask("sinfo", "--noheader", "--format=%T"), process)
        assert not running_jobs(slurm) and len(list(victim.store.entries())) > 4
        assert "PENDING" in slurm.ask("squeue", "--noheader", "--format=%T")
        slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        finish(process)
    assert_same(project, local)


def test_a_controller_started_again_in_the_middle_is_waited_for(project, local, slurm):
    with training(project, slurm) as (process, victim):
        slurm.stop_controller()
        victim.let_go()
        wait_until(victim.store.path(victim.key).exists, process)
        slurm.start_controller()
        printed = finish(process)
    assert "Traceback" not in printed
    assert_same(project, local)
