"""What a stage tells MLflow, written to a journal on disk first.

A stage runs inside :func:`stage`. What it reports is appended to a journal under ``$DVC_ROOT/.mlflow/journal``, each
line on disk before the call returns, and artifacts are copied to ``.mlflow/files``. `pipeline.sync` turns journals
into MLflow runs: one child run per stage (or per :meth:`Run.child`) under one parent run per pipeline state. So a
tracking server that is away costs a line of output, never a result, and MLflow can be rebuilt from the journals.

When journals are published. Importing MLflow and opening its store costs 2.3 s of CPU time, a journal then 0.04 s
(sources.md#mlflow); the demo's 49 stages would spend two minutes on it. So a stage publishes every pending journal, its
own and those left by stages before it, if it

- failed, so that the failure can be seen at once, or
- was opened with ``publish=True`` (``tables``, the last stage), or
- finds that the oldest pending journal was begun more than :data:`PUBLISH_AFTER` seconds ago (long stages always do);

other stages leave theirs to a later one and say so. A stage that is told to stop (Ctrl-C, SIGTERM) ends at once and
leaves its journal too; one that is killed outright cannot even close it, and is published as KILLED by the next.

``tables`` publishes what waits when it begins beside its own work, and a stage that says :meth:`Run.ends_soon` loads
MLflow beside what is left of it (:class:`pipeline.sync.Ahead`).
"""

from __future__ import annotations

import json
import numbers
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, YAMLError

from par.config import Config
from par.files import canonical_json, link_or_copy, sha256_bytes, sha256_file
from par.operating_system import SIGTERM_EXIT
from par.schema import to_plain
from pipeline import sync
from pipeline.address import scrubbed
from pipeline.journal import OWN, PARENT, Journal, home, milliseconds, safe_name, waiting

PUBLISH_AFTER = 300.0  # seconds; publishing costs 2.3 s and more, so about 1% of the time goes into it


class Run:
    """Handle of one MLflow run, for a stage to report to. Obtained from :func:`stage` and :meth:`child`."""

    def __init__(self, journal: Journal, run: str, ahead: sync.Ahead | None = None) -> None:
        self._journal = journal
        self._run = run
        self._ahead = ahead

    def params(self, values: Mapping[str, Any]) -> None:
        """Record parameters; a name given again takes the later value."""
        self._journal.write("params", self._run, values={name: str(value) for name, value in values.items()})

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers, all at one ``step`` (0 by default). ``None`` values are left out."""
        self._metrics([(name, value, step or 0) for name, value in values.items()])

    def curves(self, curves: Mapping[str, Sequence[Mapping[str, Any]]], x: str = "epoch") -> None:
        """Record every numeric column of the rows of each prefix as metric ``<prefix>/<column>``, without a prefix as
        ``<column>``, with the column ``x`` as step. All of them are one event, so one wait for the disk."""
        self._metrics(
            [
                (f"{prefix}/{name}" if prefix else name, value, row[x])
                for prefix, rows in curves.items()
                for row in rows
                for name, value in row.items()
                if name != x and isinstance(value, numbers.Real)
            ]
        )

    def artifact(self, path: str | Path, folder: str = "") -> None:
        """Keep a file, or a directory with all in it, under ``folder`` of the run's artifacts."""
        path = Path(path)
        if path.is_dir():
            for item in sorted(path.iterdir()):
                self.artifact(item, f"{folder}/{path.name}".strip("/"))
            return
        copy = f"{sha256_file(path)}/{path.name}"
        files = {copy: lambda draft: shutil.copyfile(path, draft)}
        self._journal.write_with_files("artifact", self._run, files, file=copy, folder=folder)

    def text(self, name: str, text: str) -> None:
        """Keep ``text`` as the artifact ``name`` (a file name)."""
        content = text.encode()
        copy = f"{sha256_bytes(content)}/{name}"
        files = {copy: lambda draft: draft.write_bytes(content)}
        self._journal.write_with_files("artifact", self._run, files, file=copy, folder="")

    def model(self, name: str, folder: Path, metrics: Mapping[str, float | None], tags: Mapping[str, str]) -> None:
        """Keep a finished learner as the run's model, and as a version of the registered model ``name``.

        Args:
            folder: what :func:`par.use.card.write_service` wrote; its files are linked, not copied, where the disk can.
            metrics: of the learner; they become the run's and the model's.
            tags: ``stream``, ``learner`` and ``seed``, and what else to say of it.
        """
        copies = {path.name: f"{sha256_file(path)}/{path.name}" for path in sorted(folder.iterdir())}
        self._journal.write_with_files(
            "model",
            self._run,
            {copy: partial(link_or_copy, folder / file) for file, copy in copies.items()},
            name=name,
            copies=copies,
            digest=sha256_bytes(canonical_json(copies).encode()),
            metrics=dict(metrics),
            tags=dict(tags),
        )

    def dataset(self, name: str, digest: str, source: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Name the run's input: ``source`` says where it lies (``dvc:data/streams/...``), ``rows`` is its index.

        MLflow keeps the columns' names and types and the number of rows, not the rows.
        """
        columns = {column: _column_type(value) for column, value in (rows[0] if rows else {}).items()}
        self._journal.write(
            "dataset", self._run, name=name, digest=digest, source=source, columns=columns, n_rows=len(rows)
        )

    @contextmanager
    def child(self, name: str) -> Iterator[Run]:
        """A run of its own for a part of the stage, called ``<stage> <name>``, beside the stage's under the parent.

        A stage that has children and reports nothing itself gets no run of its own, unless it fails.
        """
        self._journal.n_children += 1
        run = Run(self._journal, str(self._journal.n_children))
        self._journal.write("start", run._run, name=f"{self._journal.stage_name} {name}")
        with _ended(run):
            yield run

    def parent_params(self, values: Mapping[str, Any]) -> None:
        """Record parameters of the pipeline's run. The first value of a name stays: MLflow forbids to change it."""
        self._parent.params(values)

    def parent_metrics(self, values: Mapping[str, float]) -> None:
        """Record headline numbers on the pipeline's run; recorded again, the later number counts."""
        self._parent.metrics(values)

    def parent_artifact(self, path: str | Path, folder: str = "") -> None:
        """Keep a file or directory with the pipeline's run."""
        self._parent.artifact(path, folder)

    def ends_soon(self) -> None:
        """Say that the stage needs one core from here on: MLflow is loaded on another, if it will be published to."""
        if self._ahead is not None and _due(self._journal.begun):
            self._ahead.begin()

    @property
    def _parent(self) -> Run:
        return Run(self._journal, PARENT)

    def _metrics(self, points: Sequence[tuple[str, Any, Any]]) -> None:
        values = [(name, float(value), int(step)) for name, value, step in points if value is not None]
        self._journal.write("metrics", self._run, values=values)


@contextmanager
def stage(config: Config, name: str, item: str | None = None, *, publish: bool = False) -> Iterator[Run]:
    """Run a stage: ``with stage(config, "train", item="demo_minus") as run: ...``.

    The run is named as DVC names the stage. An exception makes it FAILED, Ctrl-C and SIGTERM (which becomes
    ``SystemExit(143)``) make it KILLED; all are raised again. Nothing that goes wrong with MLflow is raised.

    Args:
        config: all of params.yaml; with the commit and the experiment's name it identifies the pipeline's run.
        name: of the stage.
        item: of the stage's axis, where it has one.
        publish: publish at the end even if it is not due (see the module's docstring), and print the UI's address.
    """
    status = "KILLED"
    with _terminated_cleanly(), sync.Ahead(config.tracking.experiment) as ahead:
        journal = Journal(os.environ.get("DVC_STAGE") or (f"{name}@{item}" if item else name))
        try:
            run = Run(journal, OWN, ahead)
            if publish:
                ahead.begin()
            journal.write("stage", PARENT, **_identity(config, journal.stage_name))
            journal.write("start", OWN, name=journal.stage_name)
            with _ended(run):
                yield run
            status = "FINISHED"
        except BaseException as error:
            status = _status(error)
            raise
        finally:
            journal.close()
            print("\n".join(_account(ahead, journal, status, publish)), flush=True)


def _account(ahead: sync.Ahead, journal: Journal, status: str, publish: bool) -> list[str]:
    """Publish if it is due; returns what a user should know about the stage's journal and MLflow."""
    lines = []
    if journal.n_lost:
        lines.append(
            f"MLflow: {journal.n_lost} of {journal.n_events} events of {journal.stage_name} are not recorded "
            f"({journal.problem}), so MLflow shows the stage in part or not at all, as KILLED if its end is missing; "
            f"its results do not depend on it. Make {home()} writable, with room, before the next run."
        )
    try:
        if status != "KILLED" and (publish or status == "FAILED" or ahead.connection is not None or _due()):
            lines += sync.publish(ahead.experiment, links=publish, begun=ahead.connection).lines()
        elif journal.n_lost < journal.n_events:
            lines.append(
                f"MLflow: {journal.stage_name} is in the journal; a later stage publishes it, or "
                "python -m pipeline.sync."
            )
    except Exception as problem:  # nothing about MLflow, its server or its database may fail the stage
        lines.append(f"MLflow: not published ({scrubbed(str(problem))}); python -m pipeline.sync does it.")
    return lines


def _due(own: int | None = None) -> bool:
    """Whether a journal has waited for more than PUBLISH_AFTER seconds, and MLflow was not out of reach since.

    Args:
        own: when the journal of this stage was begun, where it is not closed and so does not wait yet.
    """
    begun = [int(path.name.split("-")[0]) for path in waiting()[:1]] or ([] if own is None else [own])
    if not begun:
        return False
    with suppress(OSError):
        begun.append(int(1000 * sync.failure_mark().stat().st_mtime))
    return milliseconds() - max(begun) > 1000 * PUBLISH_AFTER


@contextmanager
def _ended(run: Run) -> Iterator[None]:
    """Record how the block ends as the end of ``run``."""
    try:
        yield
    except BaseException as error:
        run._journal.write("end", run._run, status=_status(error), device=_device())
        raise
    run._journal.write("end", run._run, status="FINISHED", device=_device())


def _status(error: BaseException) -> str:
    """The MLflow status of a block that ``error`` left; ``sys.exit()`` without an error code is no failure."""
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code == SIGTERM_EXIT):
        return "KILLED"
    return "FINISHED" if isinstance(error, SystemExit) and not error.code else "FAILED"


@contextmanager
def _terminated_cleanly() -> Iterator[None]:
    """Make SIGTERM, which also comes when dvc dies (see the package), raise ``SystemExit(143)`` in the block."""

    def leave(signal_number: int, frame: object) -> None:
        raise SystemExit(SIGTERM_EXIT)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _identity(config: Config, stage_name: str) -> dict[str, Any]:
    """What a journal says about its pipeline: key, name, tags, params and configuration of the parent run."""
    experiment, plain = os.environ.get("DVC_EXP_NAME", ""), to_plain(config)
    commit, dirty = git_state()
    short = commit[:7] or "no commit"
    return {
        "experiment": config.tracking.experiment,
        "pipeline": f"{safe_name(experiment or short)}-{sha256_bytes(json.dumps(plain, sort_keys=True).encode())[:8]}",
        "name": experiment or f"alpha={config.alpha:g} @{short}",
        "config": plain,
        "params": {"preset": config.preset, "alpha": config.alpha, "beta": config.beta, **_swept(config.preset)},
        "tags": {
            "dvc.exp": experiment,
            "dvc.baseline": os.environ.get("DVC_EXP_BASELINE_REV", commit),
            "git.commit": commit,
            "git.dirty": str(dirty).lower(),
            "env.python": platform.python_version(),
            **{f"env.{package}": _version(package) for package in ("torch", "torchvision", "numpy")},
            "env.machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        },
        "stage": stage_name,
    }


def git_state() -> tuple[str, bool]:
    """The commit (empty where there is none) and whether the files it tracks differ from it.

    The lock files and the reports change while the pipeline runs, and params.yaml by copying a preset over it; they do
    not make its code or parameters different.
    """
    unlike = [":(top,exclude)dvc.lock", ":(top,exclude)pipeline/dvc.lock", ":(top,exclude)reports"]
    params, presets = Path("params.yaml"), Path("presets").glob("*.yaml")
    if params.is_file() and any(preset.read_bytes() == params.read_bytes() for preset in presets):
        unlike.append(":(top,exclude)params.yaml")
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ":/", *unlike)
    return git("rev-parse", "HEAD"), bool(changes)


def _swept(preset: str) -> dict[str, str]:
    """The values of params.yaml that differ from the committed file's: what ``dvc exp run -S`` or a hand changed.

    Only within one preset: another preset differs in nearly everything, which would bury the swept value in the UI.
    """
    try:
        committed = YAML(typ="safe").load(git("show", "HEAD:./params.yaml")) or {}
    except YAMLError:
        committed = {}
    path = Path("params.yaml")
    if committed.get("preset") != preset or not path.is_file():
        return {}
    before, now = _leaves(committed), _leaves(YAML(typ="safe").load(path.read_text(encoding="utf-8")))
    return {name: str(value) for name, value in now.items() if name not in before or before[name] != value}


def _leaves(block: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings flattened to dotted names."""
    leaves: dict[str, Any] = {}
    for name, value in block.items():
        if isinstance(value, Mapping):
            leaves |= _leaves(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


def git(*arguments: str) -> str:
    """What a git command prints here; empty where there is no git, no repository or no commit."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _device() -> str:
    """What the stage has computed on; torch is asked only where the stage has loaded it (importing costs seconds)."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch.cuda.get_device_name()
    return "cpu"


def _column_type(value: object) -> str:
    """MLflow's name for the type of a column that holds ``value``."""
    for kind, name in ((bool, "boolean"), (numbers.Integral, "long"), (numbers.Real, "double")):
        if isinstance(value, kind):
            return name
    return "string"
