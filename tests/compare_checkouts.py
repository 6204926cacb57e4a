"""Do two checkouts learn the same bits? ``python -m tests.compare_checkouts BEFORE AFTER``, run by hand.

A refactoring keeps every bit: each checkout learns every method and variants of PAR on two demo streams in a scratch
folder of its own (settings: :data:`PARAMS`), and whatever does not come from a clock is compared: predictions, each
tensor of the saved learners, training logs, plans, distances, cells and results. Each stage runs as DVC would run it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML

from par.files import canonical_json, read_json, sha256_bytes
from par.methods import METHODS
from par.schema import read_yaml

STREAMS = ("demo_minus", "demo_split")
STAGES = ("stream", "extract", "prototypes", "route", "search", "train", "evaluate")
CLOCK = ("seconds", "seconds_search")  # keys and columns that differ from run to run
# Variants together: every kind of search, cells taken over, joining with distillation, with old heads, head-only.
PARAMS = """
preset: compare
streams: []
seeds: [0]
device: cpu
workers: 2
predict: full
extractor: {image_size: 48}
methods:
  cat: {width: 100, similarity_epochs: 1}
  gpm: {width: 0.25}
  hat: {network: resnet}
  learn_to_grow: {search_epochs: 1}
  lmc: {channels: 4, projection_epochs: 1, recipe: {optimizer: adam, learning_rate: 0.003}}
  soft_gating: {channels: 4, recipe: {optimizer: adam, learning_rate: 0.003}}
recipe: {epochs: 2, batch_size: 16, learning_rate: 0.05}
network: {width: 8}
expert: {cells: 2, channels: 4}
search: {epochs: 2}
variants:
  search_fixed: {search: {update: fixed}}
  search_advantage: {search: {update: advantage}}
  search_random: {search: {update: random}}
  none_joins: {alpha: -.inf, beta: 1.0}
  all_join: {alpha: 1.0, beta: 1.0}
  old_heads: {alpha: 1.0, beta: 1.0, distillation: {train_old_heads: true}}
  head_only: {alpha: 1.0, beta: 1.0, freeze_below: 1.0}
  plateau: {alpha: 1.0, beta: 1.0, recipe: {schedule: plateau, patience: 1}, distance: {estimator: corrected}}
ablation:
  streams: []
  variants: [search_fixed, search_advantage, search_random, none_joins, all_join, old_heads, head_only, plateau]
"""


def default_params(streams: list[str]) -> dict[str, Any]:
    """:data:`PARAMS` on ``streams``, with every method; those that it does not name keep their defaults."""
    params = YAML(typ="safe").load(PARAMS)
    methods = {name: params["methods"].get(name) or {} for name in METHODS}
    ablation = params["ablation"] | {"streams": streams}
    return params | {"streams": streams, "methods": methods, "ablation": ablation}


def learn(checkout: Path, folder: Path, params: dict[str, Any]) -> None:
    """Run the stages of ``checkout`` on ``params`` in ``folder``, which is made; ends the program where one fails."""
    if folder.exists():
        sys.exit(f"{folder} exists already; remove it or name another folder with --keep.")
    folder.mkdir(parents=True)
    with open(folder / "params.yaml", "w", encoding="utf-8") as file:
        YAML().dump(params, file)
    quiet = {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment = os.environ | quiet | {"PYTHONPATH": str(checkout), "DVC_ROOT": str(folder)}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{checkout}: {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    imported = Path(python("-c", "import pipeline; print(pipeline.__path__[0])").strip())
    if imported != checkout / "pipeline":
        sys.exit(f"{checkout}: pipeline would be imported from {imported}; give the root of a checkout.")
    for stage, stream in itertools.product(STAGES, params["streams"]):
        started = time.monotonic()
        python("-m", f"pipeline.{stage}", "--stream", stream)
        print(f"{checkout}: {stage} {stream}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of everything learned in ``folder`` by name: files, and the tensors (``<file>: <path>``) of models.

    Clocks are taken out of JSON and CSV files. What is no tensor in a saved learner stands under the file's own name.
    """
    found = {}
    for path in sorted(folder.glob("runs/*/*/*/*")):
        name = str(path.relative_to(folder))
        if path.name == "model.pt":
            others = []
            for place, leaf in leaves(torch.load(path, weights_only=True), ""):
                if isinstance(leaf, torch.Tensor):
                    found[f"{name}: {place}"] = sha256_bytes(content(leaf))
                else:
                    others.append((place, leaf))
            found[name] = sha256_bytes(repr(others).encode())
        else:
            found[name] = sha256_bytes(without_clock(path))
    for pattern in ("plans/*/*.json", "distances/*.csv", "cells/*/*/*/*", "results/*.json"):
        for path in sorted(folder.glob(pattern)):
            found[str(path.relative_to(folder))] = sha256_bytes(without_clock(path))
    return found


def leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Everything in nested containers that is none itself, with the keys that lead to it."""
    if isinstance(value, (dict, list, tuple)) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{place}/{key}")
    else:
        yield place, value


def content(tensor: torch.Tensor) -> bytes:
    """Type, shape and bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    return f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + flat.view(torch.uint8).numpy().tobytes()


def without_clock(path: Path) -> bytes:
    """The content of a file, wall-clock times taken out of JSON and CSV."""
    if path.suffix == ".json":
        return canonical_json(timeless(read_json(path))).encode()
    if path.suffix == ".csv":
        with open(path, newline="", encoding="utf-8") as file:
            return canonical_json([timeless(row) for row in csv.DictReader(file)]).encode()
    return path.read_bytes()


def timeless(value: Any) -> Any:
    """``value`` without the keys in :data:`CLOCK`, at any depth."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in CLOCK}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def compare(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """A line for everything that is on one side alone or not equal."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            lines.append(f"only before: {name}")
        elif name not in before:
            lines.append(f"only after: {name}")
        elif before[name] != after[name]:
            lines.append(f"differs: {name}")
    return lines


def summary(folder: Path, found: dict[str, str]) -> str:
    """What was compared, in one line."""
    n_tensors = sum(": " in name for name in found)
    n_files = len({name.split(": ")[0] for name in found})
    learners = {path.name for path in folder.glob("runs/*/*") if path.is_dir()}
    n_streams = len(list(folder.glob("runs/*")))
    return f"{n_files} files and {n_tensors} tensors of {len(learners)} learners on {n_streams} streams"


def decisions(folder: Path) -> str:
    """How often the plans decide what: settings under which no task joins would compare little."""
    tasks = [
        decision
        for path in folder.glob("plans/*/*.json")
        for seed in read_json(path)["seeds"].values()
        for decision in seed["tasks"]
    ]
    counts = Counter(decision["decision"] for decision in tasks)
    counts["head only"] = sum(decision["head_only"] for decision in tasks)
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.compare_checkouts", description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another")
    parser.add_argument("--streams", default=",".join(STREAMS), help="separated by commas; %(default)s")
    parser.add_argument("--params-before", type=Path, metavar="FILE", help="in place of the built-in params.yaml")
    parser.add_argument("--params-after", type=Path, metavar="FILE", help="the same for AFTER")
    parser.add_argument("--before-run", type=Path, metavar="DIR", help="what --keep left as DIR/before; not run again")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what is learned in DIR/before and DIR/after")
    parser.add_argument("--list", action="store_true", help="print every digest of AFTER")
    return parser.parse_args()


def main() -> None:
    """Learn in both checkouts, compare, print; exit code 1 where anything differs."""
    options = arguments()
    streams = options.streams.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        home = (options.keep or Path(scratch)).resolve()
        folders, found = [], []
        for side, file in (("before", options.params_before), ("after", options.params_after)):
            params = (read_yaml(file) | {"streams": streams}) if file else default_params(streams)
            folder = home / side
            if side == "before" and options.before_run:
                folder = options.before_run.resolve()
                if read_yaml(folder / "params.yaml") != params:
                    file = folder / "params.yaml"
                    sys.exit(f"{file} is not what BEFORE would learn; give it as --params-before or learn anew.")
            else:
                learn(getattr(options, side).resolve(), folder, params)
            folders.append(folder)
            found.append(digests(folder))
        differences = compare(*found)
        if options.list:
            print("\n".join(f"{digest}  {name}" for name, digest in found[1].items()))
        print("\n".join(differences), end="\n" if differences else "")
        print(f"decisions: {decisions(folders[1])}")
        verdict = f"{len(differences)} differences" if differences else "equal"
        print(f"{summary(folders[1], found[1])}: {verdict}")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
