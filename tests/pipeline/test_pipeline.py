"""The stages as a user meets them: crashes and mistakes in the input."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from par.methods import METHODS
from par.seeding import numpy_generator
from par.streams import definition, load_stream
from pipeline import evaluate
from pipeline import stage as stages
from pipeline import stream as stream_stage
from pipeline.stage import StageError
from tests.pipeline.helpers import make_checkout
from tests.project import (
    DIGITS,
    PARAMS,
    STAGES,
    environment,
    made_once,
    make_project,
    run,
    run_stage,
    run_until_training,
)

SMALL = {  # settings that make a method small enough for the tiny stream
    "cat": "{width: 20, similarity_epochs: 2}",
    "gpm": "{network: resnet, images: 20}",
    "hat": "{network: resnet}",
    "learn_to_grow": "{search_epochs: 2}",
    "lmc": "{channels: 4, projection_epochs: 2, threshold: 0.0}",
    "soft_gating": "{channels: 4}",
}


def route(folder: Path) -> None:
    """Make a project in ``folder/routed`` in which everything before training is done."""
    run_until_training(make_project(folder / "routed"))


@pytest.fixture(scope="session")
def routed(tmp_path_factory) -> Path:
    """What :func:`route` makes; to be copied, since the test processes share it."""
    return made_once(tmp_path_factory, "routed", route) / "routed"


def contents(folder: Path, *names: str) -> dict[str, bytes]:
    """Bytes of the files called ``names`` below ``folder``."""
    return {str(path.relative_to(folder)): path.read_bytes() for name in names for path in sorted(folder.rglob(name))}


# in one process each of them is killed, too (tests/steps/test_checkpoint.py)
FEW = ("er", "mntdp_d", "par")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "n_kills"), [(FEW, 2), pytest.param(tuple(METHODS), 4, marks=pytest.mark.exhaustive)], ids=["few", "all"]
)
def test_killed_within_steps_methods_and_the_search_end_with_the_same_bytes(routed, tmp_path, names, n_kills):
    """Real processes, real `kill -9`, each some time after the running step has saved itself anew."""
    methods = "".join(f"  {name}: {SMALL.get(name, '{}')}\n" for name in names)
    start, end = PARAMS.index("methods:\n") + len("methods:\n"), PARAMS.index("recipe:\n")
    params = f"checkpoint_minutes: 1.0e-9\n{PARAMS[:start]}{methods}{PARAMS[end:]}"
    params = params.replace("epochs: 2\n  batch", "epochs: 4\n  batch")
    straight, killed = (shutil.copytree(routed, tmp_path / name) for name in ("straight", "killed"))
    for folder in (straight, killed):
        (folder / "params.yaml").write_text(params)
        for computed in ("cells", "seconds", ".par/store"):
            shutil.rmtree(folder / computed)
    for stage in STAGES[4:7]:
        run_stage(straight, stage)

    generator, running, done = numpy_generator("kills"), killed / ".par/store/running", 0
    for stage, times in (("search", n_kills // 2), ("train", 2 * n_kills)):
        for _ in range(times):
            command = [sys.executable, "-m", f"pipeline.{stage}", "--stream", "tiny"]
            process = subprocess.Popen(command, cwd=killed, env=environment(killed), stderr=subprocess.DEVNULL)
            old, wait = saves(running), generator.integers(0, 4)
            while saves(running) <= old and process.poll() is None:
                time.sleep(0.01)
            time.sleep(0.05 * wait)
            process.kill()
            if process.wait() == 0:  # a fast machine has finished before its last kills
                break
            done += 1
            assert not (killed / ("cells/tiny" if stage == "search" else "runs/tiny")).exists()
        run_stage(killed, stage)
    assert done > n_kills
    run_stage(killed, "evaluate")
    for folder in ("cells", "runs", "results"):
        assert contents(straight / folder, "*.*") == contents(killed / folder, "*.*") != {}
    assert not list(running.glob("*.pt"))


def saves(running: Path) -> int:
    """When a running step saved itself last (ns)."""
    times = [0]
    for path in running.glob("*.pt"):
        with contextlib.suppress(FileNotFoundError):  # the step is done
            times.append(path.stat().st_mtime_ns)
    return max(times)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_sigterm_ends_a_stage_and_its_workers(routed, tmp_path):
    folder = shutil.copytree(routed, tmp_path / "project")
    (folder / "params.yaml").write_text(
        PARAMS.replace("workers: 1", "workers: 2").replace("epochs: 2\n  b", "epochs: 500\n  b")
    )
    command = [sys.executable, "-m", "pipeline.train", "--stream", "tiny"]
    stage = subprocess.Popen(command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True)
    children: set[int] = set()
    while len(children) < 2:
        assert stage.poll() is None, stage.stderr.read()
        time.sleep(0.1)
        listed = Path(f"/proc/{stage.pid}/task/{stage.pid}/children").read_text()
        children = {int(number) for number in listed.split()}
    stage.terminate()
    assert stage.wait(timeout=30) == 128 + signal.SIGTERM
    for _ in range(100):
        if not any(Path(f"/proc/{child}").exists() for child in children):
            break
        time.sleep(0.1)
    assert not any(Path(f"/proc/{child}").exists() for child in children), "a worker outlived its stage"


def write_image(path: Path, content: bytes | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    else:
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)


def corrupt_png(folder: Path) -> None:
    for split in ("train", "test"):
        write_image(folder / f"data/sources/mine/{split}/a/0.png", b"no image" if split == "test" else None)


def empty_class(folder: Path) -> None:
    for split in ("train", "test"):
        write_image(folder / f"data/sources/mine/{split}/a/0.png")
    (folder / "data/sources/mine/train/b").mkdir()
    write_image(folder / "data/sources/mine/test/b/0.png")


def truncated_zip(folder: Path) -> None:
    (folder / "data/sources").mkdir(parents=True)
    (folder / "data/sources/mine.zip").write_bytes(b"PK\x03\x04 and nothing more")


def small_folder(folder: Path, classes: str = "ab") -> None:
    for split in ("train", "test"):
        for name in classes:
            write_image(folder / f"data/sources/mine/{split}/{name}/0.png")


def one_class(folder: Path) -> None:
    small_folder(folder, "a")


MINE = "image_size: 8\ntasks:\n  - {source: mine, train: 4, valid: 2}\n"
MISTAKES = {
    "unknown stream": (None, DIGITS, PARAMS.replace("- tiny", "- tinny"), ["'tinny'", "unknown"]),
    "unknown method": (None, DIGITS, PARAMS.replace("finetune:", "finetun:"), ["'finetun'", "unknown", "finetune"]),
    "alpha is a word": (None, DIGITS, PARAMS.replace("alpha: 0.5", "alpha: high"), ["alpha", "'high'", "number"]),
    "no such class": (None, DIGITS.replace("n_classes: 4", "classes: [x]"), PARAMS, ["'x'", "digits"]),
    "empty class": (empty_class, MINE, PARAMS, ["b", "mine"]),
    "truncated zip": (truncated_zip, MINE, PARAMS, ["mine.zip"]),
    "corrupt image": (corrupt_png, MINE, PARAMS, ["0.png"]),
    "no data": (None, MINE, PARAMS, ["mine", "data/sources"]),
    "too few images": (small_folder, MINE, PARAMS, ["'a' of mine has 0 train images, the task needs 4", "'b'"]),
    "one class": (one_class, MINE, PARAMS, ["task 0 (mine) has 1", "2 to 256 classes"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path, mistake, monkeypatch, capsys):
    prepare, text, params, words = MISTAKES[mistake]
    folder = make_checkout(tmp_path, monkeypatch)
    (folder / "tiny.yaml").write_text(text)
    (folder / "params.yaml").write_text(params)
    monkeypatch.setattr(definition, "DEFINITIONS", folder)
    monkeypatch.setattr(sys, "argv", ["pipeline.stream", "--stream", "tiny"])
    if prepare is not None:
        prepare(folder)
    with pytest.raises(SystemExit) as leaving:
        stages.run_stage("stream", stream_stage.main)
    assert leaving.value.code == 1
    line = line_of(capsys.readouterr().err, "stream tiny")
    for word in words:
        assert word in line
    left = folder / "data/streams"
    assert not left.exists() or not list(left.iterdir())


@pytest.mark.slow
def test_missing_weights_are_one_sentence(routed, tmp_path):
    folder = shutil.copytree(routed, tmp_path / "project")
    shutil.rmtree(folder / "data/features")
    (folder / "params.yaml").write_text(PARAMS.replace("weights: null", "weights: nowhere.pth"))
    failed = run_stage(folder, "extract", check=False)
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "extract tiny: extractor.weights" in failed.stderr and "nowhere.pth" in failed.stderr
    assert not (folder / "data/features").exists()


def sentence(failed: subprocess.CompletedProcess[str], place: str) -> str:
    """The one line by which a process of a stage failed."""
    assert failed.returncode == 1, failed.stderr
    return line_of(failed.stderr, place)


def line_of(stderr: str, place: str) -> str:
    """The one line of a stage that failed without a traceback; a progress bar is none."""
    assert "Traceback" not in stderr, stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith(f"{place}: ") and "%|" not in line]
    return line


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
@pytest.mark.parametrize("stage", ["extract", "search", "train"])
def test_cuda_without_a_card_is_one_sentence(routed, tmp_path, stage):
    folder = shutil.copytree(routed, tmp_path / "project")
    (folder / "params.yaml").write_text(
        PARAMS.replace("workers: 1", "workers: 2").replace("device: cpu", "device: cuda")
    )
    line = sentence(run_stage(folder, stage, check=False), f"{stage} tiny")
    assert "device = 'cuda'" in line and "auto and cpu" in line


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_training_goes_on_when_there_is_room(routed, tmp_path):
    folder = shutil.copytree(routed, tmp_path / "project")
    command = f"ulimit -f 60; exec {sys.executable} -m pipeline.train --stream tiny"  # no file above 60 KiB
    line = sentence(run(folder, "bash", "-c", command, check=False), "train tiny")
    assert "9 jobs" not in line and "finetune seed 0" in line and "File too large" in line and ".par/store" in line
    assert not (folder / "runs/tiny").exists() and not list((folder / ".par/store").glob("??/.*"))
    done = run_stage(folder, "train")
    computed, reused = map(int, re.search(r"steps computed: (\d+), from the store: (\d+)", done.stdout).groups())
    assert computed + reused == 9 and reused > 0


@pytest.mark.slow
def test_prune_deletes_what_params_no_longer_use_and_nothing_before_all_is_there(routed, tmp_path):
    folder = shutil.copytree(routed, tmp_path / "project")
    prune = (sys.executable, "-m", "pipeline.prune")
    line = sentence(run(folder, *prune, check=False), "prune")
    assert "9 of the 11 steps" in line and "Nothing was deleted" in line
    run_stage(folder, "train")
    assert "0 unused entries" in run(folder, *prune).stdout
    (folder / "params.yaml").write_text(PARAMS.replace("  independent: {}\n", ""))
    # independent's three steps, a prediction each
    assert run(folder, *prune).stdout.startswith("6 unused entries and 0 leftovers deleted")
    assert "steps computed: 0, from the store: 6" in run_stage(folder, "train").stdout
    (folder / "plans/tiny/par.json").unlink()
    line = sentence(run(folder, *prune, check=False), "prune")
    assert "plans/tiny/par.json is missing" in line and "dvc repro" in line


HOSTILE = {
    "no archive": (lambda path: path.write_bytes(b"PK and nothing more"), "cannot be read"),
    "an object, which would be code": (lambda path: save(path, {"0/0": np.array([print], object)}), "cannot be read"),
    "a class too many": (lambda path: save(path, {"0/0": np.full(40, 4, np.uint8)}), "class 4 where there are 4"),
    "no integers": (lambda path: save(path, {"0/0": np.zeros(40)}), "float64"),
    "no task": (lambda path: save(path, {"0/9": np.zeros(40, np.uint8)}), "no task"),
    "too few images": (lambda path: save(path, {"0/0": np.zeros(39, np.uint8)}), "39"),
}


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(path, allow_pickle=True, **arrays)


@pytest.mark.slow
def test_predictions_that_are_none_are_one_sentence(routed, tmp_path):
    folder = shutil.copytree(routed, tmp_path / "project")
    (folder / "params.yaml").write_text(PARAMS.replace("  independent: {}\n  par: {}\n", ""))
    run_stage(folder, "train")
    predictions = folder / "runs/tiny/finetune/0/predictions.npz"
    for make, words in HOSTILE.values():
        make(predictions)
        with pytest.raises(StageError, match=f"runs/tiny/finetune/0/predictions.npz .*{words}"):
            evaluate._predictions(predictions, load_stream(folder / "data/streams/tiny/0"))
    line = sentence(run_stage(folder, "evaluate", check=False), "evaluate tiny")
    assert "runs/tiny/finetune/0/predictions.npz" in line and words in line
    assert not (folder / "results/tiny.json").exists()
