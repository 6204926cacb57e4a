"""What would become of a new task, said before anything is trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from par.config import PAR, ExtractorSettings
from par.files import read_json
from par.relatedness.plan import Decision, read_plan
from par.schema import parse
from par.settings import load, resolve
from par.streams import SourceError, Stream, load_stream
from par.streams.definition import Definition
from par.streams.embedded import EMBEDDED
from par.streams.stream import build_definition
from par.use.forecast import Forecast, build_task, forecast, new_parameters
from par.use.identifier import extractor_of, load_prototypes
from pipeline import ask
from tests.use.conftest import STREAM


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Data sets as image folders: the embedded digits and scenes, 20 training and 10 test images a class."""
    for name in ("digits", "scenes"):
        source = EMBEDDED[name]()
        for split, count in (("train", 20), ("test", 10)):
            for label, class_name in enumerate(source.classes):
                folder = tmp_path / name / split / class_name
                folder.mkdir(parents=True)
                for row in source.rows(split, label)[-count:]:
                    Image.fromarray(source.images[split][row]).save(folder / f"{row}.png")
    return tmp_path


def stream_of_noise(folder: Path) -> Stream:
    """A stream of one task with two classes of noise."""
    for split in ("train", "test"):
        for name in ("a", "b"):
            (folder / "noise" / split / name).mkdir(parents=True)
            for number in range(6):
                pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "noise" / split / name / f"{number}.png")
    raw = {"sources": {"noise": {}}, "tasks": [{"source": "noise", "valid": 2}]}
    return build_definition("noise", 0, parse(Definition, raw), raw, folder, folder / "built")


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert ask.main(["--stream", STREAM, *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_last_task_of_a_stream_is_forecast_as_it_was_planned(at_home):
    """A stream without its last task, asked about it, decides as the plan of the whole stream, digit for digit."""
    config, stream = load(), load_stream(f"data/streams/{STREAM}/0")
    features = Path(f"data/features/{STREAM}.npz")
    prototypes = load_prototypes(Path(f"data/prototypes/{STREAM}.npz"), 0, 2, "valid")
    with np.load(features) as archive:
        known = {name.removeprefix("0/").replace("/valid", ""): archive[name] for name in archive.files}
    earlier, last = (dataclasses.replace(stream, tasks=tasks) for tasks in (stream.tasks[:2], stream.tasks[2:]))
    extractor = extractor_of(features, config.extractor)
    found = forecast(earlier, last, config.routing(PAR), known, prototypes, extractor)
    plan = read_plan(f"plans/{STREAM}/par.json")[0]
    assert [*found.decisions, found.new] == plan
    assert found.new.decision == "join" and found.nearest_task == 0


@pytest.mark.slow
def test_a_repeated_task_with_other_samples_joins_and_another_one_is_searched(at_home, folders, capsys):
    task = load_stream(f"data/streams/{STREAM}/0").tasks[0]
    picture = folders / "picture.png"
    before = {path: path.stat().st_mtime_ns for path in at_home.rglob("*")}
    words = said(capsys, "--classes", ",".join(task.class_names), "--picture", picture, folders / "digits")
    assert "PAR would join group 0 (alpha 0.5, beta 0.75)" in words and "Nearest task: " in words
    assert "4 classes" in words and "on the 32 valid images" in words and "48 training images" in words
    assert f"With alpha below {words.split('distance ')[2][:5]} it would take that group's cell" in words
    words = said(capsys, "--picture", picture, folders / "scenes")
    assert "PAR would search a cell" in words and "The search before it would take about 0." in words
    assert "Learning it would take about 0." in words and "parameters, " not in words
    assert {path: path.stat().st_mtime_ns for path in at_home.rglob("*")} == before
    assert Image.open(picture).format == "PNG" and Image.open(picture).width > 800


@pytest.mark.slow
def test_what_it_would_cost_is_what_such_tasks_cost(at_home):
    """The parameters named for joining, and for an expert with a known cell, are those of the run's own tasks."""
    config, stream = load(), load_stream(f"data/streams/{STREAM}/0")
    plan = read_plan(f"plans/{STREAM}/par.json")[0]
    steps = read_json(f"runs/{STREAM}/par/0/steps.json")["steps"]
    totals = [0, *(step["n_params"] for step in steps)]
    settings, cells = resolve(config, STREAM, PAR), Path(f"cells/{STREAM}/par/0")

    def cost(new: Decision) -> tuple[int, int]:
        found = Forecast(decisions=(), new=new, groups=(), scores=(), of_tasks=())
        return new_parameters(found, stream.tasks[new.task].n_classes, settings, cells)

    assert cost(plan[2]) == (totals[3] - totals[2],) * 2
    assert cost(dataclasses.replace(plan[1], decision="reuse_cell")) == (totals[2] - totals[1],) * 2
    least, most = cost(plan[1])
    assert least <= totals[2] - totals[1] <= most


@pytest.mark.slow
def test_thresholds_of_now_count_and_another_plan_is_said(at_home, folders, monkeypatch, tmp_path, capsys):
    params = Path("params.yaml").read_text()
    for name in ("data", "cells", "plans", "runs", "seconds"):
        (tmp_path / name).symlink_to(at_home / name)
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(params.replace("alpha: 0.5", "alpha: -.inf").replace("beta: 0.75", "beta: 1.0"))
    words = said(capsys, "--picture", "picture.png", folders / "digits")
    assert "PAR would take the cell of task 0 (alpha -inf, beta 1)" in words
    assert f"plans/{STREAM}/par.json decides otherwise on the stream's own tasks" in words


def test_a_place_that_is_no_data_set_is_refused(tmp_path):
    stream = stream_of_noise(tmp_path)
    with pytest.raises(SourceError, match="does not exist; give a folder or zip"):
        build_task(stream, tmp_path / "missing", tmp_path / "out")
    (tmp_path / "loose").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "loose/a.png")
    with pytest.raises(SourceError, match="holds no train/<class>/<image>; lay it out"):
        build_task(stream, tmp_path / "loose", tmp_path / "out")


def test_the_new_task_has_as_many_validation_images_as_the_median_task(tmp_path):
    stream = stream_of_noise(tmp_path)
    (task,) = build_task(stream, tmp_path / "noise", tmp_path / "out").tasks
    assert (task.counts["train"], task.counts["valid"], task.image_size) == (8, 4, (8, 8))
    (task,) = build_task(stream, tmp_path / "noise", tmp_path / "out", valid=3, train=1).tasks
    assert (task.counts["train"], task.counts["valid"]) == (2, 6)


def test_other_weights_than_those_of_the_features_are_refused(tmp_path):
    meta = '{"name":"efficientnet_lite0","digest":"0","n_params":1,"image_size":48}'
    np.savez(tmp_path / "features.npz", meta=np.array(meta))
    with pytest.raises(SourceError, match="was made with other weights of efficientnet_lite0"):
        extractor_of(tmp_path / "features.npz", ExtractorSettings())
