"""Worker processes: what happens when they, or their parents, are killed."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from par.operating_system import GRACE_SECONDS, WATCH_SECONDS
from par.schema import ConfigError
from par.steps.jobs import Planned
from par.steps.store import Store
from par.steps.workers import run_jobs
from par.streams import SourceError
from par.training.trainer import DivergedError
from tests.process_tree import Tree, waiting_stage
from tests.project import REPOSITORY

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
STAGE, WORKER = "-m tests.process_tree", "-m par.steps.worker"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def kill_at(tree: Tree, moment: str, delay: float, victim: str, signal_number: int) -> float:
    """Kill ``delay`` seconds after ``moment``; returns the seconds by which others outlived the victim."""
    if moment != "start":
        tree.wait_for(STAGE if moment == "stage" else WORKER)
    time.sleep(delay)
    if victim == "group":
        os.killpg(tree.root.pid, signal_number)
    pid = tree.wait_for(STAGE)[0] if victim == "stage" else tree.root.pid
    if victim != "group":
        os.kill(pid, signal_number)
    end = time.monotonic() + 30  # a stage that is asked to end takes a second to clear torch away
    while pid in tree.members():
        assert time.monotonic() < end, f"{victim} does not heed {signal.Signals(signal_number).name}"
        time.sleep(0.01)
    return tree.seconds_until_all_have_ended()


@only_linux
@pytest.mark.parametrize(
    ("moment", "delay", "victim", "signal_number"),
    [
        ("stage", 0.0, "dvc", signal.SIGKILL),  # before the stage can have asked to be told
        ("stage", 0.3, "dvc", signal.SIGTERM),
        ("worker", 0.0, "stage", signal.SIGKILL),  # the same for workers
        ("worker", 0.3, "stage", signal.SIGTERM),
        ("worker", 0.5, "dvc", signal.SIGKILL),
        ("worker", 0.5, "group", signal.SIGHUP),
    ],
)
def test_nothing_outlives_its_parent_by_two_seconds(tmp_path, moment, delay, victim, signal_number):
    tree = waiting_stage(tmp_path)
    try:
        outlived = kill_at(tree, moment, delay, victim, signal_number)
    finally:
        output = tree.end()
    assert outlived < 2 and "Traceback" not in output, output


@only_linux
@pytest.mark.slow
@pytest.mark.exhaustive  # `make faults` kills at random moments too
@pytest.mark.parametrize("victim", ["dvc", "stage", "group"])
def test_nothing_outlives_its_parent_killed_at_any_moment(tmp_path, victim):
    moments = [("start", delay) for delay in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0)]
    moments += [("worker", delay) for delay in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0, 2.0, 3.0)]
    late = {}
    for number, (moment, delay) in enumerate(moments):
        signal_number = SIGNALS[number % 4]
        if victim == "dvc" and signal_number == signal.SIGINT:
            signal_number = signal.SIGKILL  # dvc leaves Ctrl-C to its stage
        tree = waiting_stage(tmp_path)
        try:
            outlived = kill_at(tree, moment, delay, victim, signal_number)
        finally:
            tree.end()
        if outlived >= 2:
            late[moment, delay, signal.Signals(signal_number).name] = outlived
    assert not late


@only_linux
def test_a_stage_started_by_hand_outlives_its_shell(tmp_path):
    tree = waiting_stage(tmp_path, dvc=False)
    try:
        tree.wait_for(WORKER, 2)
        time.sleep(WATCH_SECONDS + GRACE_SECONDS)
        assert len(tree.members()) == 3
    finally:
        tree.end()


@only_linux
def test_ctrl_c_is_one_sentence_and_code_130(tmp_path):
    tree = waiting_stage(tmp_path)
    try:
        tree.wait_for(WORKER, 2)
        time.sleep(0.2)
        os.killpg(tree.root.pid, signal.SIGINT)
        assert tree.root.wait(30) == 130
        assert tree.seconds_until_all_have_ended() < 2
    finally:
        output = tree.end()
    assert len(re.findall("^train demo_split: interrupted.*$", output, re.MULTILINE)) == 1
    assert "Traceback" not in output and "worker" not in output, output


@only_linux
def test_ctrl_c_while_a_stage_imports_is_no_traceback(tmp_path):
    command = f"exec {sys.executable} -m pipeline.train --stream tiny"
    tree = Tree(command, tmp_path, {**os.environ, "PYTHONPATH": str(REPOSITORY)})
    try:
        (stage,) = tree.wait_for("-m pipeline.train")
        while "libtorch_python" not in Path(f"/proc/{stage}/maps").read_text():
            time.sleep(0.01)
        os.kill(stage, signal.SIGINT)
        assert tree.root.wait(30) == -signal.SIGINT % 256  # a shell would say 130
    finally:
        output = tree.end()
    assert output == "Interrupted.\n"


def test_ctrl_c_before_anything_else_is_imported_is_no_traceback(tmp_path):
    (tmp_path / "ctypes.py").write_text("raise KeyboardInterrupt")  # the first of our imports that takes time
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "DVC_STAGE": "train@tiny"}
    command = [sys.executable, "-m", "pipeline.train", "--stream", "tiny"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "Interrupted.\n")


@dataclass(frozen=True)
class Do:
    """A job that runs a function of this module with the store's folder."""

    label: str
    function: Callable[[Path], None]

    def cost(self) -> int:
        return 10

    def run(self, store: Store, progress: Callable[[int], None]) -> tuple[int, int]:
        progress(4)
        self.function(store.folder)
        progress(6)
        return 1, 0


def nothing(folder: Path) -> None:
    pass


def die_once(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def die(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(folder: Path) -> None:
    os._exit(3)


def divide(folder: Path) -> None:
    raise ZeroDivisionError("no images")


def misconfigure(folder: Path) -> None:
    raise ConfigError("alpha = 'x' has the wrong type.")


def miss(folder: Path) -> None:
    raise SourceError("no data set of that name.")


def diverge(folder: Path) -> None:
    raise DivergedError("the loss is nan.")


def fill(folder: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def test_the_job_of_a_killed_worker_runs_once_more(tmp_path, capfd):
    jobs = [Do("fragile", die_once), *(Do(f"other {number}", nothing) for number in range(3))]
    outcome = run_jobs(jobs, Store(tmp_path), 2, "test")
    assert (outcome.steps_computed, outcome.failures) == (4, [])
    errors = capfd.readouterr().err
    (sentence,) = re.findall("^.*The worker of fragile .*$", errors, re.MULTILINE)
    assert "killed by SIGKILL" in sentence and "out of memory" in sentence and "`workers: 1`" in sentence
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_job_that_loses_two_workers_fails_and_the_others_finish(tmp_path, capfd):
    jobs = [Do("deadly", die), Do("leaving", leave), *(Do(f"other {number}", nothing) for number in range(3))]
    outcome = run_jobs(jobs, Store(tmp_path), 2, "test")
    assert outcome.steps_computed == 3
    failures = dict(outcome.failures)
    assert list(failures) == ["deadly", "leaving"]
    assert "SIGKILL" in failures["deadly"].text and "`workers: 1`" in failures["deadly"].text
    assert "exit code 3" in failures["leaving"].text and "memory" not in failures["leaving"].text
    assert not any(failure.is_bug for failure in failures.values())
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bug_keeps_its_traceback_and_a_mistake_is_a_sentence(tmp_path, workers):
    functions = {"bug": divide, "config": misconfigure, "source": miss, "loss": diverge, "disk": fill, "none": nothing}
    outcome = run_jobs([Do(*item) for item in functions.items()], Store(tmp_path), workers, "test")
    failures = dict(outcome.failures)
    assert list(failures) == sorted(set(functions) - {"none"}) and outcome.steps_computed == 1
    bug = failures.pop("bug")
    assert bug.is_bug and "Traceback" in bug.text and "in divide" in bug.text and "no images" in bug.text
    assert not any(failure.is_bug or "\n" in failure.text for failure in failures.values())
    assert failures["config"].text == "alpha = 'x' has the wrong type."
    assert str(tmp_path) in failures["disk"].text and "make room" in failures["disk"].text


def note_settings(folder: Path) -> None:
    (folder / "settings").write_text(f"{torch.get_num_threads()} {sys.float_info.min / 2}")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_has_one_thread_and_no_tiny_numbers_and_who_runs_it_keeps_its_own_settings(tmp_path, workers):
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert run_jobs([Do("settings", note_settings)], Store(tmp_path), workers, "test").failures == []
        assert (tmp_path / "settings").read_text() == "1 0.0"
        assert torch.get_num_threads() == 3 and sys.float_info.min / 2 > 0
    finally:
        torch.set_num_threads(threads)


def note(folder: Path) -> None:
    """Leave the order of the calls behind."""
    with (folder / "order").open("a") as order:
        order.write("search\n")


def note_chain(folder: Path) -> None:
    with (folder / "order").open("a") as order:
        order.write("chain\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_starts_after_the_one_that_it_needs_and_not_at_all_if_that_fails(tmp_path, workers):
    jobs = [
        Planned("chain", Do("chain", note_chain), after="search", seconds=99),
        Planned("search", Do("search", note), seconds=1),
        Planned("lost", Do("lost", note_chain), after="broken", seconds=98),
        Planned("broken", Do("broken", misconfigure)),
        Planned("free", Do("free", nothing), after="elsewhere"),
    ]
    outcome = run_jobs(jobs, Store(tmp_path), workers, "test")
    assert outcome.steps_computed == 3 and (tmp_path / "order").read_text() == "search\nchain\n"
    failures = dict(outcome.failures)
    assert failures.keys() == {"broken", "lost"} and failures["lost"].text == "it needs broken, which failed."
