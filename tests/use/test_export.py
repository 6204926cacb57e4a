"""A learner as files that other programs read."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from par.files import read_json
from par.methods import METHODS
from par.schema import ConfigError
from par.use import export
from par.use.predictor import Predictor
from pipeline import export as command
from tests.use.conftest import STREAM

MISSING = "the extra `export` is not installed"


def predictor(method: str) -> Predictor:
    return Predictor.of_run(*map(export.Path, (f"runs/{STREAM}/{method}/0", f"data/streams/{STREAM}/0")))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_is_exported_answers_as_the_run(method, at_home, tmp_path):
    pytest.importorskip("safetensors", reason=MISSING)
    learned = predictor(method)
    export.export_state(learned, tmp_path)
    copy = export.read_export(tmp_path)
    for task in learned.stream.tasks:
        images = task.split("test").images
        assert np.array_equal(copy.logits(images, task.index), learned.logits(images, task.index))
        assert copy.predict(images[:1], task.index)[0].classes == learned.predict(images[:1], task.index)[0].classes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["par", "finetune", "independent"])
def test_an_onnx_file_answers_as_the_learner_for_any_number_of_images(method, at_home, tmp_path):
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module, reason=MISSING)
    onnxruntime = pytest.importorskip("onnxruntime", reason=MISSING)
    learned = predictor(method)
    task = learned.stream.tasks[1]
    images = task.split("test").images
    assert export.export_onnx(learned, 1, images, tmp_path / "one.onnx") <= export.TOLERANCE
    session = onnxruntime.InferenceSession(tmp_path / "one.onnx")
    for count in (1, 2, len(images)):
        (found,) = session.run(None, {"pixels": np.asarray(images[:count], np.float32)})
        np.testing.assert_allclose(found, learned.logits(images[:count], 1), atol=1e-4, rtol=1e-4)
    properties = session.get_modelmeta().custom_metadata_map
    assert json.loads(properties["classes"]) == list(task.class_names) and properties["task"] == task.name


@pytest.mark.slow
def test_a_file_that_answers_otherwise_is_not_written(at_home, tmp_path, monkeypatch):
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module, reason=MISSING)
    learned = predictor("finetune")
    images = learned.stream.tasks[1].split("test").images
    right = learned.logits
    monkeypatch.setattr(learned, "logits", lambda *arguments: right(*arguments) + 0.01)
    with pytest.raises(export.InexactError, match="the ONNX file of task 1 answers with logits that differ by 1.0e-02"):
        export.export_onnx(learned, 1, images, tmp_path / "wrong.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_writes_a_card_of_what_was_learned(at_home, tmp_path, capsys):
    pytest.importorskip("safetensors", reason=MISSING)
    assert command.main(["--stream", STREAM, "--out", str(tmp_path)]) == 0
    card, result = read_json(tmp_path / "card.json"), read_json(f"results/{STREAM}.json")["learners"]["par"]["0"]
    assert card["ap"] == pytest.approx(result["ap"]) and card["n_params"] == result["n_params"]
    assert [task["accuracy"] for task in card["tasks"]] == result["accuracy"][-1]
    assert sorted(card["tasks"][1]["classes"]) == ["brick", "grass", "gravel"]
    assert card["tasks"][1]["image_size"] == [16, 16] and len(card["tasks"][1]["mean"]) == 3
    assert card["cells"]["0"] == read_json(f"cells/{STREAM}/par/0/0.json")["genotype"]
    assert f"State: {tmp_path}/model.safetensors" in capsys.readouterr().out


def test_without_the_extra_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ConfigError, match=r"safetensors is not installed; run: pip install -e '\.\[export\]'"):
        export.needed("safetensors.torch")
