"""A finished run answers as it did in training, for images that come as files."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from par.files import read_json, write_json
from par.methods import METHODS
from par.relatedness.prototypes import Prototypes
from par.schema import ConfigError
from par.streams import SourceError, load_stream
from par.use.identifier import load_prototypes
from par.use.predictor import Predictor, find_task
from pipeline import predict
from tests.project import run
from tests.use.conftest import STREAM


def answers(*arguments: str) -> int:
    """Call the command in the current folder."""
    return predict.main(["--stream", STREAM, *arguments])


def table(*arguments: str) -> pd.DataFrame:
    """The table that the command writes, by file; all as texts."""
    assert answers(*arguments, "--csv", "out.csv") == 0
    return pd.read_csv("out.csv", dtype=str).sort_values("file", ignore_index=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_learner_answers_on_the_test_images_as_in_training(method, project):
    place = project / "runs" / STREAM / method / "0"
    predictor = Predictor.of_run(place, project / f"data/streams/{STREAM}/0")
    with np.load(place / "predictions.npz") as archive:
        predictions = dict(archive)
    for chain in predictor.chains:
        for task in chain["tasks"]:
            expected = predictions[f"{chain['tasks'][-1]}/{task}"]
            images = predictor.stream.tasks[task].split("test").images
            whole = predictor.logits(images, task)
            assert whole.dtype == np.float32 and np.array_equal(whole.argmax(axis=1), expected)
            singles = np.concatenate([predictor.logits(images[row : row + 1], task) for row in range(len(images))])
            assert np.array_equal(singles.argmax(axis=1), expected)
            many = np.resize(images, (256, *images.shape[1:]))  # the same images over and over
            assert np.array_equal(predictor.logits(many, task).argmax(axis=1), np.resize(expected, 256))


@pytest.mark.slow
@pytest.mark.parametrize("task", [0, 1])
def test_the_files_that_a_task_was_made_of_get_the_classes_of_the_run(task, at_home):
    stream = load_stream(f"data/streams/{STREAM}/0")
    with np.load(f"runs/{STREAM}/par/0/predictions.npz") as archive:
        step = max(int(name.split("/")[0]) for name in archive.files if name.endswith(f"/{task}"))
        expected = archive[f"{step}/{task}"]
    found = table("--task", str(task), f"pictures/{task}")
    assert list(found["class"]) == [stream.tasks[task].class_names[label] for label in expected]
    assert set(found["task"]) == {stream.tasks[task].name}
    ranks = [f"probability_{rank}" for rank in range(2, stream.tasks[task].n_classes + 1)]
    probabilities = found[["probability", *ranks]].astype(float)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (np.diff(probabilities, axis=1) <= 0).all()


@pytest.mark.slow
def test_a_zip_and_single_files_are_read_alike(at_home, tmp_path):
    shutil.make_archive(str(tmp_path / "zipped"), "zip", "pictures/0")
    of_folder, of_zip = table("--task", "0", "pictures/0"), table("--task", "0", str(tmp_path / "zipped.zip"))
    of_files = table("--task", "0", "pictures/0/001.png", "pictures/0/000.png")
    assert of_folder.drop(columns="file").equals(of_zip.drop(columns="file"))
    assert list(of_files["file"]) == ["pictures/0/000.png", "pictures/0/001.png"]
    assert of_files["class"].equals(of_folder["class"][:2])


@pytest.mark.slow
def test_auto_finds_the_task_of_each_image_as_often_as_the_results_say(at_home):
    result = read_json(f"results/{STREAM}.json")
    stream = load_stream(f"data/streams/{STREAM}/0")
    for task in stream.tasks:
        found = table("--task", "auto", f"pictures/{task.index}")
        assert np.mean(found["task"] == task.name) == result["identification"]["0"][task.index]
    right = []
    for task in stream.tasks:
        found = table("--task", "auto", "--learner", "finetune", f"pictures/{task.index}")
        truth = [task.class_names[label] for label in task.split("test").labels]
        right.append(np.mean((found["task"] == task.name) & (found["class"] == truth)))
    assert np.mean(right) == pytest.approx(result["learners"]["finetune"]["0"]["ap_without_identity"])


@pytest.mark.slow
def test_any_lets_the_classes_of_all_tasks_compete(at_home):
    found = table("--task", "any", "pictures/0", "pictures/1")
    probabilities = found[[name for name in found if name.startswith("probability")]].astype(float).to_numpy()
    assert (np.diff(probabilities, axis=1) <= 0).all() and (probabilities.sum(axis=1) < 1 + 1e-9).all()
    of_textures = found["file"].str.startswith("pictures/1")
    assert (found["task"][of_textures] == "textures").mean() > 0.7
    assert (found["task"][~of_textures] != "textures").mean() > 0.7


@pytest.mark.slow
def test_what_cannot_be_read_is_counted_and_the_rest_is_answered(at_home, tmp_path, capsys):
    shutil.copytree("pictures/0", tmp_path / "mixed")
    (tmp_path / "mixed/broken.png").write_bytes(b"no image")
    (tmp_path / "mixed/notes.txt").write_text("no image")
    assert answers("--task", "digits", str(tmp_path / "mixed")) == 0
    printed = capsys.readouterr()
    assert "1 file could not be read: " in printed.err
    assert "mixed/broken.png is no image that Pillow reads; replace or remove that file.\n" in printed.err
    assert "1 file: not read, not an image; e.g. notes.txt.\n" in printed.err
    assert len(printed.out.splitlines()) == 1 + len(os.listdir("pictures/0"))
    assert answers("--task", "0", str(tmp_path / "mixed/broken.png")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--task", "zebras", "pictures"), "demo_split has no task 'zebras'; its tasks are 0 (digits), 1 (textures)"),
        (("--task", "0", "nowhere"), "nowhere does not exist; give an image, a folder or a zip"),
        (("--task", "0", "--learner", "nobody", "pictures"), "runs/demo_split/nobody/0 holds no settings.json"),
        (("--task", "0", "--seed", "7", "pictures"), "runs/demo_split/par/7 holds no settings.json"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words, at_home, capsys):
    with pytest.raises(SystemExit, match="1"):
        answers(*arguments)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith("predict: ") and words in printed


@pytest.mark.slow
def test_as_a_program_it_prints_a_table(at_home):
    done = run(at_home, sys.executable, "-m", "pipeline.predict", "--stream", STREAM, "--task", "1", "pictures/1")
    assert done.stdout.splitlines()[0].split() == ["file", "task", "class", "probability", "next"]
    assert done.stdout.splitlines()[1].startswith("pictures/1/000.png  1 textures")


@pytest.mark.slow
def test_a_changed_params_file_is_said_and_changes_nothing(at_home, monkeypatch, tmp_path, capsys):
    before = table("--task", "0", "pictures/0")
    monkeypatch.chdir(shutil.copytree(at_home, tmp_path / "project"))
    params = Path("params.yaml").read_text().replace("channels: 4\n", "channels: 8\n")
    Path("params.yaml").write_text(params.replace("epochs: 1", "epochs: 3"))
    capsys.readouterr()
    assert table("--task", "0", "pictures/0").equals(before)
    assert "params.yaml has changed since (recipe, expert, search); the run answers as it" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_another_stream_or_of_unknown_settings_is_refused(project, tmp_path):
    place, directory = project / f"runs/{STREAM}/finetune/0", project / f"data/streams/{STREAM}/0"
    copy = shutil.copytree(place, tmp_path / "run")
    recorded = read_json(copy / "settings.json")
    write_json(copy / "settings.json", recorded | {"stream": recorded["stream"] | {"digest": "0" * 64}})
    with pytest.raises(SourceError, match="was learned on other images than those in"):
        Predictor.of_run(copy, directory)
    write_json(copy / "settings.json", recorded | {"learner": recorded["learner"] | {"hyper": {"depth": 3}}})
    with pytest.raises(ConfigError, match="hyper.depth = 3 is not a known key"):
        Predictor.of_run(copy, directory)
    write_json(copy / "settings.json", recorded | {"computed": {"device": "cuda", "precision": "bf16"}})
    elsewhere = Predictor.of_run(copy, directory, "cpu")
    assert (elsewhere.precision, elsewhere.learned_on) == ("float32", "cuda")
    shutil.copy(place / "settings.json", copy)
    (copy / "model.pt").write_bytes((place / "model.pt").read_bytes()[:500])
    with pytest.raises(SourceError, match="run cannot be read .*; delete it and train again"):
        Predictor.of_run(copy, directory)


@pytest.mark.slow
def test_tasks_are_found_by_number_and_by_name(project):
    stream = load_stream(project / f"data/streams/{STREAM}/0")
    assert find_task(stream, "2").index == find_task(stream, "digits again").index == 2


def test_missing_prototypes_are_one_sentence(tmp_path):
    with pytest.raises(SourceError, match="does not exist; run the pipeline"):
        load_prototypes(tmp_path / "none.npz", 0, 1, "valid")
    np.savez(tmp_path / "some.npz", **{"0/0/valid/means": np.zeros((2, 3)), "0/0/valid/counts": np.ones(2, int)})
    (found,) = load_prototypes(tmp_path / "some.npz", 0, 1, "valid")
    assert isinstance(found, Prototypes) and found.means.shape == (2, 3)
    with pytest.raises(SourceError, match="holds no 3/0/valid"):
        load_prototypes(tmp_path / "some.npz", 3, 1, "valid")
