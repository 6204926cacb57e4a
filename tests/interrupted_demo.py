"""Does an interrupted pipeline end with the same bytes? ``python -m tests.interrupted_demo [--kills 10] [--seed 0]``.

Two clones of the checkout, as committed, run ``dvc repro`` on the same params.yaml, by default the shipped demo; each
has a cache, a store and an MLflow database of its own. Nothing disturbs the first, which may be a checkout that has
run already (``--straight``). The second is killed at random
points of its progress: dvc, the stage, one of its workers or all of them, by SIGKILL, SIGTERM or SIGINT; where that
ends dvc, it is started again. In the end every file that does not hold a time must be equal. Draws are seeded, but
what they hit is a matter of the machine's speed.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from par.files import sha256_bytes
from tests.compare_checkouts import compare
from tests.faults import family, strike, survivors
from tests.project import REPOSITORY, environment, run

COMPARED = ("data", "plans", "distances", "cells", "runs", "results")
MILESTONES = ("data/*/*", "plans/*", ".par/store/??/*.pt", "cells/*", "runs/*", "results/*")
TARGETS = ("dvc", "stage", "worker", "group")
LONGEST_DELAY = 2.0  # seconds between reaching a point of progress and the kill
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Broken(Exception):
    """A promise that was not kept, in words."""


def clone(folder: Path, params: Path | None) -> Path:
    """A clone of the checkout, as committed, with another params.yaml if given."""
    run(REPOSITORY, "git", "clone", "-q", str(REPOSITORY), str(folder))
    if params is not None:
        shutil.copy(params, folder / "params.yaml")
    return folder


def start(folder: Path) -> subprocess.Popen[bytes]:
    """``dvc repro`` in a session of its own; what it prints is appended to ``<folder>.log``."""
    variables = environment(folder)
    del variables["OMP_NUM_THREADS"]  # results say what it was, and a run by hand has none
    with open(f"{folder}.log", "a", encoding="utf-8") as log:
        return subprocess.Popen(
            ["dvc", "repro"], cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True
        )


def straight(folder: Path) -> float:
    """Run the pipeline undisturbed; returns its seconds.

    Raises:
        Broken: it failed.
    """
    started = time.monotonic()
    if start(folder).wait():
        raise Broken(f"dvc repro failed without a kill:\n{_end_of_log(folder)}")
    return time.monotonic() - started


def progress(folder: Path) -> int:
    """How many steps and outputs of stages are there."""
    return sum(len(list(folder.glob(pattern))) for pattern in MILESTONES)


def interrupted(folder: Path, kills: Sequence[tuple[int, float]], generator: random.Random) -> tuple[Counter[str], int]:
    """Run the pipeline to its end in spite of kills.

    Args:
        kills: the :func:`progress` and the seconds after it at which each kill comes.

    Returns:
        How often who was killed by what, and how often dvc was started.

    Raises:
        Broken: something outlived its dvc, it failed without a kill, or it ended before all kills.
    """
    struck: Counter[str] = Counter()
    for starts in range(1, len(kills) + 2):
        process, struck_before, members = start(folder), struck.total(), []
        while process.poll() is None:
            time.sleep(0.05)
            if struck.total() == len(kills) or progress(folder) < kills[struck.total()][0]:
                continue
            time.sleep(kills[struck.total()][1])
            target, number = generator.choice(TARGETS), generator.choice(SIGNALS)
            members = family(process.pid)
            hit = strike(members, target, number, generator)
            struck[f"{number.name} to the {hit}"] += 1
            print(f"kill {struck.total()}: {number.name} to the {hit}", file=sys.stderr, flush=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)  # either dvc ends now or it goes on
        if alive := survivors(members):
            raise Broken(f"outlived dvc: {'; '.join(alive)}")
        if process.returncode == 0:
            if struck.total() < len(kills):
                raise Broken(f"the pipeline ended after {struck.total()} of {len(kills)} kills; take another --seed")
            return struck, starts
        if struck.total() == struck_before:
            raise Broken(f"dvc repro failed without a kill:\n{_end_of_log(folder)}")
    raise AssertionError("a kill ends dvc once at most")


def _end_of_log(folder: Path) -> str:
    return "\n".join(Path(f"{folder}.log").read_text(encoding="utf-8").splitlines()[-30:])


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 by name of all files that hold no times."""
    files = [path for part in COMPARED for path in sorted((folder / part).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): sha256_bytes(path.read_bytes()) for path in files}


def compare_runs(home: Path, kills: int, seed: int, params: Path | None, done: Path | None = None) -> list[str]:
    """Run both in ``home`` and print what came of it; returns a line for every file that is not in both and equal.

    Args:
        done: a checkout in which the pipeline has run undisturbed, so that only the other run is needed.

    Raises:
        Broken: as :func:`interrupted`.
    """
    folders = [done or clone(home / "straight", params), clone(home / "interrupted", params)]
    undisturbed = "in a run before"
    if done is None:
        undisturbed = f"{straight(folders[0]):.0f} s"
        print(f"undisturbed: {undisturbed}", file=sys.stderr, flush=True)
    generator, total = random.Random(seed), progress(folders[0])
    points = sorted(generator.choices(range(total), k=kills))
    delays = [generator.uniform(0, LONGEST_DELAY) for _ in points]
    started = time.monotonic()
    struck, starts = interrupted(folders[1], list(zip(points, delays)), generator)
    took = time.monotonic() - started
    before, after = (digests(folder) for folder in folders)
    differences = compare(before, after)
    words = ", ".join(f"{times}x {what}" for what, times in sorted(struck.items()))
    size = sum(name.endswith("predictions.npz") for name in before)
    print("\n".join([*differences, f"kills: {words}"]))
    print(f"undisturbed {undisturbed}; {kills} kills, dvc started {starts} times, {took:.0f} s")
    print(f"{len(before)} files, {size} of them predictions: {len(differences) or 'no'} differences")
    return differences


def main() -> int:
    """Command line; exits with 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.interrupted_demo", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=10, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments, the targets and the signals")
    parser.add_argument("--params", type=Path, metavar="FILE", help="in place of the committed params.yaml")
    parser.add_argument("--straight", type=Path, metavar="FOLDER", help="a checkout that has run undisturbed already")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would dvc
    with tempfile.TemporaryDirectory() as home:
        try:
            return 1 if compare_runs(Path(home), options.kills, options.seed, options.params, options.straight) else 0
        except Broken as broken:
            print(broken)
            return 1


if __name__ == "__main__":
    sys.exit(main())
