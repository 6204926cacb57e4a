"""Stage ``tables``: the report of the preset, and the headline numbers of the pipeline's MLflow run."""

from __future__ import annotations

import dataclasses
import functools
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from par.config import PAR, Config
from par.files import read_json
from par.reporting.reading import Reading, parse_reading
from par.reporting.report import Inputs, render
from par.reporting.scores import with_seconds
from par.schema import NAME_PATTERN, read_yaml
from par.settings import load
from par.streams import Stream, load_stream
from par.streams.show import contact_sheet
from pipeline.compare import committed
from pipeline.stage import (
    CELLS,
    DISTANCES,
    PLANS,
    REPORTS,
    RESULTS,
    SEARCH_SECONDS,
    STREAMS,
    TRAIN_SECONDS,
    run_tables,
)
from pipeline.tracking import Run, git_state

MAX_ROWS = 20  # tasks on a contact sheet
READINGS = Path("docs/readings")
PAPER = Path("presets/paper.yaml")


def main(config: Config, run: Run) -> None:
    """Write ``reports/<preset>/``."""
    _remove_unlisted(config.streams)
    out = REPORTS / config.preset
    inputs = _inputs(config)
    run.parent_metrics(render(out, config, inputs))
    run.parent_artifact(out)
    run.parent_artifact("params.yaml")
    compared = inputs.compared()
    print(
        f"Beside {inputs.reference.name}: {compared.summary()}"
        if compared
        else f"Not compared: {inputs.reference.name}."
    )
    print(f"Report: {out / 'index.html'}")


def _remove_unlisted(listed: Sequence[str]) -> None:
    """Remove, from the folders that this stage depends on, what streams left that params.yaml no longer lists.

    DVC leaves the outputs of a stage that is no more, and a dependency on a folder counts all that is in it: a clone,
    which gets the outputs of the listed streams alone, would find this stage changed. Only streams that DVC has run
    here are concerned (dvc.lock names them), and only what its cache keeps: not what ``--no-commit`` left out.
    """
    lock = read_yaml("dvc.lock") if Path("dvc.lock").is_file() else {}
    digests: dict[str, dict[Path, str]] = {}  # of the outputs, by stream
    for stage, ran in lock.get("stages", {}).items():
        of_stream = digests.setdefault(stage.partition("@")[2], {})
        of_stream.update({Path(out["path"]): out.get("md5", "") for out in ran.get("outs", ())})
    for stream in sorted(digests.keys() - set(listed)):
        if NAME_PATTERN.fullmatch(stream):
            outputs = [folder / stream for folder in (CELLS, PLANS, STREAMS)]
            outputs += [folder / f"{stream}.json" for folder in (RESULTS, SEARCH_SECONDS, TRAIN_SECONDS)]
            outputs.append(DISTANCES / f"{stream}.csv")
            left = [path for path in outputs if path.exists()]
            cached = [path for path in left if _is_in_cache(digests[stream].get(path))]
            for path in cached:
                path.unlink() if path.is_file() else shutil.rmtree(path)
            if cached:
                print(
                    f"{stream} is no longer listed in params.yaml: removed {', '.join(map(str, cached))}. DVC's cache "
                    "keeps them; list the stream again, and dvc repro brings them back."
                )
            if lost := [str(path) for path in left if path not in cached]:
                print(
                    f"{stream} is no longer listed in params.yaml. DVC's cache does not hold {', '.join(lost)}, so "
                    "they stay; remove them, or a clone, which lacks them, runs this stage again. To keep them list "
                    "the stream again and run dvc commit."
                )


def _is_in_cache(digest: str | None) -> bool:
    """Whether DVC's cache holds an output of that digest in dvc.lock; of a folder it writes the list last."""
    return bool(digest) and (_cache() / str(digest)[:2] / str(digest)[2:]).is_file()


@functools.cache
def _cache() -> Path:
    """Where the cache's files lie; asking dvc takes a second."""
    done = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], capture_output=True, text=True)
    return Path(done.stdout.strip() or "nowhere") / "files/md5"


def _inputs(config: Config) -> Inputs:
    """What the stages before this one wrote."""
    built = {
        stream: {seed: load_stream(STREAMS / stream / str(seed)) for seed in config.seeds} for stream in config.streams
    }
    commit, dirty = git_state()
    trained, searched = (
        {stream: read_json(folder / f"{stream}.json") for stream in config.streams}
        for folder in (TRAIN_SECONDS, SEARCH_SECONDS)
    )
    return Inputs(
        results={
            stream: with_seconds(read_json(RESULTS / f"{stream}.json"), trained[stream], searched[stream])
            for stream in config.streams
        },
        plans={
            stream: {name: read_json(PLANS / stream / f"{name}.json") for name in (PAR, *config.variants_on(stream))}
            for stream in config.streams
        },
        distances={stream: pd.read_csv(DISTANCES / f"{stream}.csv") for stream in config.streams},
        cells={stream: _by_search(CELLS / stream, ".json", read_json) for stream in config.streams},
        search_seconds=searched,
        histories={stream: _by_search(CELLS / stream, ".csv", pd.read_csv) for stream in config.streams},
        sheets={stream: _sheet(of_seed[config.seeds[0]]) for stream, of_seed in built.items()},
        digests={stream: {str(seed): one.digest for seed, one in of_seed.items()} for stream, of_seed in built.items()},
        findings={
            stream: {str(seed): one.findings for seed, one in of_seed.items()} for stream, of_seed in built.items()
        },
        paper=load(PAPER),
        reading=_reading(READINGS / f"{config.preset}.md"),
        # DVC removes the folder before this stage; git has the published one
        reference=committed(REPORTS / config.preset),
        provenance={"commit": commit, "dirty": dirty, "python": platform.python_version(), "torch": version("torch")},
    )


def _by_search(folder: Path, suffix: str, read: Callable[[Path], Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """The files ``<variant>/<seed>/<task><suffix>`` of a folder, read, by variant, seed and task."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted(folder.glob(f"*/*/*{suffix}")):
        found.setdefault(path.parts[-3], {}).setdefault(path.parts[-2], {})[path.stem] = read(path)
    return found


def _reading(path: Path) -> Reading | None:
    """The reading of the preset's report, if there is one."""
    return parse_reading(path.read_text(encoding="utf-8"), path.name) if path.is_file() else None


def _sheet(stream: Stream) -> Image.Image:
    """The contact sheet of a stream, of a long one its first tasks."""
    return contact_sheet(dataclasses.replace(stream, tasks=stream.tasks[:MAX_ROWS]))


if __name__ == "__main__":
    run_tables(main)
