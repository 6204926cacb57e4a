"""A small project of its own in a temporary folder: the code, one stream, one params.yaml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parent.parent
STAGES = ("stream", "extract", "prototypes", "route", "search", "train", "evaluate", "tables")
DIGITS = """
image_size: 8
augment: [crop]
tasks:
  - {source: digits, n_classes: 4, train: 16, valid: 12, test: 10}
  - {source: textures, train: 8, valid: 8, test: 10}
  - {source: digits, name: digits again, n_classes: 4, train: 10, valid: 12, test: 10}
"""
PARAMS = """
preset: tiny
alpha: 0.5
beta: 0.75
freeze_below: 0.1
streams:
  - tiny
seeds:
  - 0
data_dir: data/sources
device: cpu
precision: auto
numerics: native
workers: 1
predict: full
extractor:
  network: efficientnet_lite0
  weights: null
  image_size: 48
distance:
  estimator: paper
methods:
  finetune: {}
  independent: {}
  par: {}
recipe:
  epochs: 2
  batch_size: 16
  learning_rate: 0.05
recipes: {}
network:
  width: 8
expert:
  cells: 2
  channels: 4
search:
  update: mdl
  epochs: 2
distillation:
  weight: 1.0
variants: {}
sweeps: {}
ablation:
  streams: []
  variants: []
tables: {}
tracking:
  experiment: par
"""


@dataclass(frozen=True)
class OneStep:
    """What is alike in jobs (:class:`par.steps.workers.Job`) of one step."""

    label: str

    def cost(self) -> int:
        return 1


def make_project(folder: Path, definition: str = DIGITS, params: str = PARAMS, stream: str = "tiny") -> Path:
    """Copy the code to ``folder`` and give it one stream and a params.yaml."""
    ignored = shutil.ignore_patterns("__pycache__", "dvc.lock")
    for name in ("par", "pipeline", "presets", "docs/readings"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
    shutil.copy(REPOSITORY / "dvc.yaml", folder)
    (folder / "par/streams/definitions" / f"{stream}.yaml").write_text(definition)
    (folder / "params.yaml").write_text(params)
    return folder


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name``, which all processes of a test session share; the first that asks lets ``make`` fill it."""
    base = temporary.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            (folder / "done").touch()
    return folder


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that works in the project."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {
        "PATH": path,
        "PYTHONPATH": str(folder),
        "DVC_ROOT": str(folder),
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def run(folder: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in the project; a failing one fails the test with what it printed."""
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


def commit(folder: Path) -> None:
    """Make the project a repository of git and DVC, with all that is there in its first commit."""
    run(folder, "git", "init", "-q")
    run(folder, "git", "config", "user.email", "test@example.com")
    run(folder, "git", "config", "user.name", "test")
    run(folder, "dvc", "init", "-q")
    run(folder, "git", "add", "-A")
    run(folder, "git", "commit", "-qm", "code")


def run_stage(folder: Path, stage: str, stream: str = "tiny", check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one stage as DVC would."""
    arguments = [] if stage == "tables" else ["--stream", stream]
    return run(folder, sys.executable, "-m", f"pipeline.{stage}", *arguments, check=check)


def run_until_training(folder: Path) -> None:
    """Run all stages before training in a project that is to be copied, and leave no journals.

    Every stage in a copy would publish them once they are five minutes old, which takes it 5 s and more.
    """
    for stage in STAGES[:5]:
        run_stage(folder, stage)
    shutil.rmtree(folder / ".mlflow")


def stages_run(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Names of the stages that a dvc command has run."""
    names = [line.split("'")[1] for line in done.stdout.splitlines() if line.startswith("Running stage")]
    return {name.rpartition(":")[2] for name in names}  # without the file that a stage outside of ./dvc.yaml stands in
