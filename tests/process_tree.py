"""A tree of processes like dvc's (dvc, shell, stage, workers), to kill a member of it and see who is left. Linux only.

``python -m tests.process_tree --stream demo_split`` is the stage: two workers and four jobs that wait for two minutes.
"""

from __future__ import annotations

import pipeline  # first, as in `python -m pipeline.train`: it ties a stage to its dvc

# isort: split
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from par.config import Config
from tests.project import PARAMS, REPOSITORY, OneStep

assert pipeline
MARK = "PAR_TEST_TREE"
# what dvc does: a shell with the command, and Ctrl-C is the command's affair
DVC = """
import signal, subprocess, sys
shell = subprocess.Popen(["/bin/sh", "-c", sys.argv[1]])
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(shell.wait())
"""


class Wait(OneStep):
    """A job (:class:`par.steps.jobs.Job`) that takes time and no computing."""

    def run(self, store: object, progress: Callable[[int], None]) -> tuple[int, int]:
        time.sleep(120)
        return 1, 0


class Tree:
    """A running tree; its processes are known by a mark in their environment, whoever is their parent by then."""

    def __init__(self, command: str, cwd: Path, environment: dict[str, str], *, dvc: bool = True):
        self.mark = uuid.uuid4().hex
        self.root = subprocess.Popen(
            [sys.executable, "-c", DVC, command] if dvc else ["/bin/sh", "-c", command],
            cwd=cwd,
            env=environment | {MARK: self.mark} | ({"DVC_STAGE": "train@tiny"} if dvc else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # what a shell starts in the background ignores Ctrl-C, and so would all below it
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def members(self) -> dict[int, str]:
        """Command line by process id of all that live; zombies do not."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    if "\nState:\tZ" not in (process / "status").read_text():
                        found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it has just ended
                continue
        return found

    def wait_for(self, words: str, count: int = 1, patience: float = 60.0) -> list[int]:
        """Process ids of ``count`` members other than the root whose command lines hold ``words``, when they exist."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            found = [pid for pid, line in self.members().items() if words in line and pid != self.root.pid]
            if len(found) >= count:
                return found
            assert self.root.poll() is None, self.root.stdout.read()
            time.sleep(0.01)
        raise AssertionError(f"no {words} in {self.members()}")

    def seconds_until_all_have_ended(self, patience: float = 10.0) -> float:
        """How long members live from now on; infinite if longer than ``patience``."""
        start = time.monotonic()
        while self.members():
            if time.monotonic() - start > patience:
                return float("inf")
            time.sleep(0.02)
        return time.monotonic() - start

    def end(self) -> str:
        """Kill what is left; returns all output."""
        for pid in self.members():
            os.kill(pid, signal.SIGKILL)
        output, _ = self.root.communicate()
        return output


def waiting_stage(folder: Path, *, dvc: bool = True) -> Tree:
    """A tree whose stage waits."""
    (folder / "params.yaml").write_text(PARAMS.replace("- tiny", "- demo_split"))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DVC_ROOT": str(folder)}
    return Tree(f"exec {sys.executable} -m tests.process_tree --stream demo_split", folder, environment, dvc=dvc)


def _body(config: Config, stream: str, run: object) -> None:
    from par.steps.store import Store
    from par.steps.workers import run_jobs
    from tests.process_tree import Wait

    run_jobs([Wait(str(number)) for number in range(4)], Store("store"), 2, stream)


if __name__ == "__main__":
    from pipeline.stage import run_stage

    run_stage("train", _body)
