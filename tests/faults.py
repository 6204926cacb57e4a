"""Faults caused on purpose: ``python -m tests.faults [--share 0.1] [--write docs/reliability.md]`` (``make faults``).

A small project learns once without a fault; that is the truth. Then hundreds of faults are caused, one after another:
processes killed at random moments, entries of the store damaged, tracking servers that are dead, mute, slow or lying,
disks that are full, settings and files that make no sense. After each the pipeline runs again undisturbed, and whatever
it then says is compared with the truth. Draws are seeded: the same call causes the same faults.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import io
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import torch
from ruamel.yaml import YAML
from tqdm import tqdm

from par.config import Config
from par.files import canonical_json, sha256_bytes
from par.schema import ConfigError, read_yaml
from par.settings import load
from par.steps.store import Store
from tests.project import PARAMS, environment, make_project, run, run_stage, run_until_training

SHUTDOWN_SECONDS = 2.0  # what outlives its parent longer is a survivor
LONGEST_WAIT = 5.0  # seconds that a fault may cost a stage
SECRET = "s3cr3t-of-a-server"


@dataclass
class Tally:
    """What came of one kind of fault."""

    fault: str
    promise: str
    tried: int = 0
    wrong_numbers: int = 0
    lost_steps: int = 0
    longest_wait: float = 0.0
    tracebacks: int = 0
    remarks: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.tried += 1
        self.wrong_numbers += outcome.wrong
        self.lost_steps += outcome.lost
        self.longest_wait = max(self.longest_wait, outcome.waited)
        self.tracebacks += outcome.traceback
        if outcome.remark:
            self.remarks.append(outcome.remark)

    @property
    def is_kept(self) -> bool:
        """Whether the promise was kept every time."""
        bad = self.wrong_numbers or self.lost_steps or self.tracebacks or self.remarks
        return not bad and self.longest_wait <= LONGEST_WAIT


@dataclass(frozen=True)
class Outcome:
    """What came of one fault: wrong numbers, finished steps computed again, seconds that a stage waited for it."""

    wrong: bool = False
    lost: int = 0
    waited: float = 0.0
    traceback: bool = False
    remark: str = ""


@dataclass(frozen=True)
class Kind:
    """One kind of fault: ``cause`` causes it once in a fresh copy of the project and says what came of it.

    ``times``: of a whole run.
    """

    fault: str
    promise: str
    times: int
    cause: Callable[[Truth, random.Random], Outcome]


@dataclass(frozen=True)
class Truth:
    """The project before training, what training it without a fault gives and takes, and a place for copies."""

    searched: Path
    trained: Path
    seconds: float
    results: dict[str, str]
    scratch: Path

    def copy(self) -> Path:
        """A fresh copy of the project before training."""
        return shutil.copytree(self.searched, self.scratch / f"copy{len(list(self.scratch.iterdir()))}")


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that holds a number by its name below ``folder``."""
    names = ("predictions.npz", "model.pt")
    files = [path for name in names for path in folder.glob(f"runs/*/*/*/{name}")] + [
        *folder.glob("cells/*/*/*/*.json")
    ]
    return {str(path.relative_to(folder)): sha256_bytes(path.read_bytes()) for path in sorted(files)}


def learn_truth(home: Path) -> None:
    """In ``home`` a project with three tasks, five learners and two workers: ``searched``, and ``trained`` once."""
    params = PARAMS.replace("workers: 1", "workers: 2").replace("epochs: 2\n  batch", "epochs: 6\n  batch")
    params = params.replace("  independent: {}\n", "  independent: {}\n  ewc: {}\n  soft_gating:\n    channels: 4\n")
    folder = make_project(home / "searched", params=params)
    # A disk that fills up while Python 3.11 or 3.12 compiles a module leaves half a file that no later start can read
    # (python/cpython#126606): nothing of ours, so all is compiled before.
    compileall.compile_dir(folder, quiet=1)
    run_until_training(folder)
    trained = shutil.copytree(folder, home / "trained")
    started = time.monotonic()
    run_stage(trained, "train")
    (home / "seconds").write_text(str(time.monotonic() - started))


@contextlib.contextmanager
def truth(home: Path) -> Iterator[Truth]:
    """What :func:`learn_truth` left in ``home``, and a place for copies."""
    trained = home / "trained"
    with tempfile.TemporaryDirectory() as scratch:
        seconds = float((home / "seconds").read_text())
        yield Truth(home / "searched", trained, seconds, digests(trained), Path(scratch))


# --- processes ---


def killed(target: str, number: signal.Signals) -> Callable[[Truth, random.Random], Outcome]:
    """Kill the stage, one of its workers or the whole group at a random moment; then run it again."""

    def cause(known: Truth, generator: random.Random) -> Outcome:
        folder = known.copy()
        command = [sys.executable, "-m", "pipeline.train", "--stream", "tiny"]
        with open(folder / "output", "w") as output:
            stage = subprocess.Popen(
                command, cwd=folder, env=environment(folder), stdout=output, stderr=output, start_new_session=True
            )
            time.sleep(generator.random() ** 2 * min(12.0, 0.7 * known.seconds))  # not when it is over
            members = family(stage.pid)
            while target == "worker" and not workers(members) and stage.poll() is None:
                time.sleep(0.05)
                members = family(stage.pid)
            hit = strike(members, target, number, generator)
            started = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                stage.wait(LONGEST_WAIT if target != "worker" else None)
            waited = time.monotonic() - started if target != "worker" else 0.0
            alive = survivors(members)
        text = (folder / "output").read_text()
        finished = {path: path.stat().st_mtime_ns for path in (folder / ".par/store").glob("??/*.pt")}
        run_stage(folder, "train")
        lost = sum(path.stat().st_mtime_ns != moment for path, moment in finished.items())
        remark = "" if hit == target else f"went to the {hit}: it came too late"
        remark = f"outlived {target} after {number.name}: {'; '.join(alive)}" if alive else remark
        return Outcome(digests(folder) != known.results, lost, waited, "Traceback" in text, remark)

    return cause


def workers(members: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those of a family that compute jobs for a stage."""
    return [one for one in members if "par.steps.worker" in _command(one)]


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it; nothing where it has ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def strike(members: Sequence[psutil.Process], target: str, number: signal.Signals, generator: random.Random) -> str:
    """Send a signal to ``dvc``, to the ``stage``, to a ``worker`` or to the process ``group`` of a family's parent.

    Where there is no such member, it goes to the one above; returns whom it was sent to. The parent is dvc or a stage.
    """
    stages = [one for one in members if any(word.startswith("pipeline.") for word in _command(one))]
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        if target == "group" and members:
            os.killpg(members[0].pid, number)
            return target
        candidates = {"worker": workers(members), "stage": stages, "dvc": members[:1]}
        for name in list(candidates)[list(candidates).index(target) :]:
            if candidates[name]:
                generator.choice(candidates[name]).send_signal(number)
                return name
    return "nobody"


def survivors(members: Sequence[psutil.Process]) -> list[str]:
    """Command lines of the members that live longer than they may from now on; these are killed."""
    _, alive = psutil.wait_procs(members, SHUTDOWN_SECONDS)
    commands = {one: " ".join(_command(one)) for one in alive}  # empty: ended, init has yet to bury it
    for one, command in commands.items():
        if command:
            one.kill()
    return [command for command in commands.values() if command]


def _command(process: psutil.Process) -> Sequence[str]:
    """The command line; empty for a process that has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return ()


# --- the store ---


def damaged(damage: Callable[[Path, random.Random], None]) -> Callable[[Truth, random.Random], Outcome]:
    """Damage one entry of the store; what the store then gives is the entry as it was, or nothing."""

    def cause(known: Truth, generator: random.Random) -> Outcome:
        with tempfile.TemporaryDirectory(dir=known.scratch) as place:
            folder = Path(shutil.copytree(known.trained / ".par/store", Path(place) / "store"))
            store = Store(folder)
            path = generator.choice(sorted(folder.glob("??/*.pt")))
            before = _fingerprint(store.get(path.stem))
            damage(path, generator)
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said):
                    found = store.get(path.stem)
                    again, computed = store.get_or_compute(path.stem, lambda: {"computed": "again"})
            except Exception as error:
                return Outcome(traceback=True, remark=f"{type(error).__name__}: {error}")
            wrong = found is not None and _fingerprint(found) != before
            wrong |= _fingerprint(store.get(path.stem)) != _fingerprint(again)
            silent = computed and path.stem not in said.getvalue()
            return Outcome(wrong, 0, 0.0, False, "recomputed without a word" if silent else "")

    return cause


def _fingerprint(value: Any) -> str:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return sha256_bytes(buffer.getvalue())


def _flip(path: Path, generator: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, generator: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: generator.randrange(len(content))])


def _append(path: Path, generator: random.Random) -> None:
    path.write_bytes(path.read_bytes() + generator.randbytes(generator.randrange(1, 100)))


def _zeroes(path: Path, generator: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = generator.randrange(len(content))
    end = min(len(content), start + 4096)
    content[start:end] = bytes(end - start)
    if bytes(content) == path.read_bytes():
        content[0] ^= 255
    path.write_bytes(content)


def _another(path: Path, generator: random.Random) -> None:
    others = [other for other in sorted(path.parent.parent.glob("??/*.pt")) if other != path]
    shutil.copyfile(generator.choice(others), path)


def _folder(path: Path, generator: random.Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


# --- tracking ---


class Server(BaseHTTPRequestHandler):
    """A tracking server that does what its name says."""

    manner = "500"

    def answer(self) -> None:
        if self.manner in ("mute", "slow"):
            time.sleep(60 if self.manner == "mute" else 0.7)
        status = int(self.manner) if self.manner.isdigit() else 200
        body = b"<html>" if self.manner == "html" else b"{}" if self.manner == "slow" else b"?"
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *arguments: object) -> None:
        """Keep quiet."""


@contextlib.contextmanager
def _server(manner: str) -> Iterator[str]:
    handler = type("Handler", (Server,), {"manner": manner})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://user:{SECRET}@127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def tracked_by(manner: str) -> Callable[[Truth, random.Random], Outcome]:
    """Run a stage that publishes beside a tracking server of bad manners, then publish into a good store."""

    def cause(known: Truth, generator: random.Random) -> Outcome:
        folder = known.copy()
        with contextlib.ExitStack() as stack:
            address = {
                "dead": f"http://user:{SECRET}@127.0.0.1:9",
                "wrong scheme": f"gopher://user:{SECRET}@127.0.0.1/",
                "no driver": f"mysql+nothing://user:{SECRET}@127.0.0.1/db",
            }.get(manner) or stack.enter_context(_server(manner))
            seconds = {}
            for uri in ("", address):  # the first, of which no journal is old enough, publishes nothing
                _wait_again(folder, old=bool(uri))
                started = time.monotonic()
                variables = environment(folder) | ({"MLFLOW_TRACKING_URI": uri} if uri else {})
                command = [sys.executable, "-m", "pipeline.prototypes", "--stream", "tiny"]
                done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
                seconds[uri] = time.monotonic() - started
        said = done.stdout + done.stderr
        kept = [path.read_text() for path in (folder / ".mlflow/journal").glob("*.jsonl")]
        after = run(folder, sys.executable, "-m", "pipeline.sync", check=False)
        broken = {
            f"exit code {done.returncode}": done.returncode != 0,
            "the password was written": SECRET in said or any(SECRET in text for text in kept),
            "no journal was kept": not kept,
            "not all was published afterwards": after.returncode != 0
            or bool(list((folder / ".mlflow/journal").glob("*.jsonl"))),
        }
        remark = next((words for words, is_so in broken.items() if is_so), "")
        return Outcome(False, 0, max(0.0, seconds[address] - seconds[""]), "Traceback" in said, remark)

    return cause


def _wait_again(folder: Path, old: bool) -> None:
    """Let all journals wait for publication, if ``old`` for so long that the next stage does it."""
    begun = 1000 if old else time.time_ns() // 1_000_000
    for journal in (folder / ".mlflow/journal").glob("*.*"):
        if journal.suffix in (".jsonl", ".done"):
            journal.rename(journal.with_name(f"{begun}-{journal.name.split('-', 1)[1]}").with_suffix(".jsonl"))


# --- disks ---


def full_disk(stage: str) -> Callable[[Truth, random.Random], Outcome]:
    """Let no file of the stage grow beyond a random size; then run it again with room."""

    def cause(known: Truth, generator: random.Random) -> Outcome:
        folder = known.copy()
        if stage == "search":
            shutil.rmtree(folder / "cells")
            shutil.rmtree(folder / ".par")
        limit = int(10 ** generator.uniform(2, 5.5))

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        command = [sys.executable, "-m", f"pipeline.{stage}", "--stream", "tiny"]
        done = subprocess.run(
            command, cwd=folder, env=environment(folder), capture_output=True, text=True, preexec_fn=limited
        )
        said = done.stdout + done.stderr
        out = folder / {"search": "cells", "train": "runs"}[stage] / "tiny"
        remark = "half an output was left" if done.returncode and out.exists() else ""
        for after in ("search", "train"):
            run_stage(folder, after)
        return Outcome(digests(folder) != known.results, 0, 0.0, "Traceback" in said, remark)

    return cause


# --- settings ---

ODD = (None, "", "x", -1, 0, 1.5, 1e300, float("nan"), float("inf"), True, [], [1, "a"], {}, {"a": {"b": 1}}, "../../x")


def odd_setting(known: Truth, generator: random.Random) -> Outcome:
    """Put something odd somewhere into params.yaml; it is refused in a sentence or it loads."""
    raw = read_yaml(known.searched / "params.yaml")
    block = raw
    while True:
        key = generator.choice(sorted(block, key=str))
        if not isinstance(block[key], dict) or not block[key] or generator.random() < 0.3:
            break
        block = block[key]
    if generator.random() < 0.2:
        block[generator.choice(("epochs", "alhpa", "-", "a b", "recipe"))] = generator.choice(ODD)
    else:
        block[key] = generator.choice(ODD)
    with tempfile.TemporaryDirectory(dir=known.scratch) as place:
        path = Path(place) / "params.yaml"
        with open(path, "w") as file:
            YAML().dump(raw, file)
        try:
            return Outcome() if isinstance(load(path), Config) else Outcome(remark="no Config")
        except ConfigError as error:
            return Outcome(remark="a sentence of several lines" if "\n" in str(error) else "")
        except Exception as error:
            return Outcome(traceback=True, remark=f"{type(error).__name__}: {error}")


SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MANNERS = ("dead", "mute", "slow", "401", "429", "500", "html", "wrong scheme", "no driver")
KINDS = (
    *(
        Kind(
            f"{number.name} to the {target} while it trains",
            promise,
            2,
            killed(target, number),
        )
        for (target, promise), number in itertools.product(
            (
                ("stage", "nothing outlives it, the next run goes on and gives the same bytes"),
                ("group", "the same"),
                ("worker", "its job is done again, the others go on, the same bytes"),
            ),
            SIGNALS,
        )
    ),
    *(
        Kind(f"an entry of the store: {words}", "noticed, said, computed again", 45, damaged(damage))
        for words, damage in (
            ("a bit flipped", _flip),
            ("cut off", _truncate),
            ("bytes appended", _append),
            ("a block of zeros", _zeroes),
            ("another entry's content", _another),
            ("a folder in its place", _folder),
        )
    ),
    *(
        Kind(
            f"tracking server: {manner}",
            "unharmed, 5 s at most, journal kept, no password",
            1,
            tracked_by(manner),
        )
        for manner in MANNERS
    ),
    *(
        Kind(f"no room on the disk in {stage}", "a sentence, no half output, goes on", 2, full_disk(stage))
        for stage in ("search", "train")
    ),
    Kind("an odd value or key in params.yaml", "refused in one sentence, or right", 240, odd_setting),
)


def cause_faults(home: Path, share: float = 1.0, seed: int = 0, kinds: Sequence[Kind] = KINDS) -> list[Tally]:
    """Cause a share of all faults, at least one of each kind, in copies of what :func:`learn_truth` left."""
    tallies = []
    with truth(home) as known:
        total = sum(max(1, round(share * kind.times)) for kind in kinds)
        with tqdm(total=total, unit="fault") as bar:
            for kind in kinds:
                tally = Tally(kind.fault, kind.promise)
                for turn in range(max(1, round(share * kind.times))):
                    bar.set_description(kind.fault)
                    tally.add(kind.cause(known, random.Random(canonical_json([seed, kind.fault, turn]))))
                    for left in known.scratch.iterdir():
                        shutil.rmtree(left, ignore_errors=True)
                    bar.update()
                tallies.append(tally)
    return tallies


def table(tallies: Sequence[Tally]) -> str:
    """The tallies as a Markdown table, and the remarks below it."""
    heads = ("fault", "promise", "tried", "wrong numbers", "lost steps", "longest wait (s)", "tracebacks", "kept")
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * 5 + "---|"]
    for one in tallies:
        cells = (one.fault, one.promise, one.tried, one.wrong_numbers, one.lost_steps, f"{one.longest_wait:.1f}",
                 one.tracebacks, "yes" if one.is_kept else "no")  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    sums = [sum(getattr(one, name) for one in tallies) for name in ("tried", "wrong_numbers", "lost_steps")]
    longest, tracebacks = max(one.longest_wait for one in tallies), sum(one.tracebacks for one in tallies)
    kept = sum(one.is_kept for one in tallies)
    total = ("**all**", "", *sums, f"{longest:.1f}", tracebacks, f"{kept} of {len(tallies)}")
    lines.append(f"| {' | '.join(map(str, total))} |")
    remarks = [f"- {one.fault}: {remark}" for one in tallies for remark in dict.fromkeys(one.remarks)]
    return "\n".join([*lines, *([""] if remarks else []), *remarks]) + "\n"


def main() -> int:
    """Command line; exits with 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Cause faults, see what comes of them.")
    parser.add_argument("--share", type=float, default=1.0, help="of all faults, at least one of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="replace the table between the marks of this Markdown file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        learn_truth(Path(home))
        tallies = cause_faults(Path(home), options.share, options.seed)
    print(table(tallies))
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        begin, end = "<!-- faults -->\n", "<!-- end of faults -->"
        head, tail = text.split(begin)[0], text.split(end)[1]
        options.write.write_text(f"{head}{begin}{table(tallies)}{end}{tail}", encoding="utf-8")
    return 0 if all(tally.is_kept for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
