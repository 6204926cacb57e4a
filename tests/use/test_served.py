"""A learner as an MLflow model: loaded, and served over HTTP by MLflow's own server."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

from par.methods import METHODS
from par.settings import load
from par.use import service
from par.use.card import write_service
from par.use.identifier import Identifier, extractor_of
from par.use.predictor import Predictor
from par.use.service import RequestError, Service
from pipeline import export as command
from pipeline.models import stream_identity
from tests.project import REPOSITORY, environment, run, run_stage
from tests.use.conftest import STREAM

RUN = Path(f"runs/{STREAM}/par/0")


def encoded(path: str | Path) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()


@pytest.fixture
def learned(at_home: Path) -> Predictor:
    return Predictor.of_run(RUN, Path(f"data/streams/{STREAM}/0"))


@pytest.mark.slow
def test_a_service_answers_as_the_run(learned, tmp_path):
    write_service(tmp_path, RUN, learned.stream)
    images = [encoded(f"pictures/{task}/{row:03}.png") for task in (0, 1, 0) for row in range(5)]
    tasks = [name for name in ("0", "textures", 0) for _ in range(5)]
    found = Service(tmp_path).answer(images, tasks)
    for number in (0, 1):
        pixels = learned.stream.tasks[number].split("test").images[:5]
        expected = learned.predict(pixels, number)
        assert [one.classes for one in found[5 * number : 5 * number + 5]] == [one.classes for one in expected]
        probabilities = [one.probabilities for one in found[5 * number : 5 * number + 5]]
        np.testing.assert_allclose(probabilities, [one.probabilities for one in expected], atol=1e-6)
    assert found[10:] == found[:5]
    assert Service(tmp_path).answer([], []) == []


@pytest.mark.slow
def test_what_cannot_be_answered_is_one_sentence(learned, tmp_path, monkeypatch):
    write_service(tmp_path, RUN, learned.stream)
    answer, image = Service(tmp_path).answer, encoded("pictures/0/000.png")
    for images, tasks, words in (
        ([image, "%%"], ["0", "0"], "image 1 is no base64 text"),
        ([base64.b64encode(b"words").decode()], ["0"], "image 0 is no image that Pillow reads; replace or remove"),
        ([3], ["0"], "image 0 is no text; send the file's bytes as base64."),
        ([image], ["zebra"], "demo_split has no task 'zebra'; its tasks are 0 (digits), 1 (textures)"),
        (["A" * 50_000_000], ["0"], "image 0 has over 32 MiB; send a smaller file."),
    ):
        with pytest.raises(RequestError) as caught:
            answer(images, tasks)
        assert words in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.setattr(service, "MAX_IMAGES", 2)
    with pytest.raises(RequestError, match="the request has 3 images; at most 2 are answered at once."):
        answer([image] * 3, ["0"] * 3)
    assert answer([image], ["0"])[0].tasks[0].index == 0


@pytest.fixture
def model(at_home: Path, tmp_path: Path) -> Path:
    assert command.main(["--stream", STREAM, "--mlflow", "--out", str(tmp_path)]) == 0
    return tmp_path / "mlflow"


@pytest.mark.slow
def test_mlflow_loads_it_with_nothing_pickled(model, learned):
    loaded = mlflow.pyfunc.load_model(str(model))
    table = loaded.predict(pd.DataFrame({"image": [encoded("pictures/1/003.png")], "task": ["textures"]}))
    expected = learned.predict(learned.stream.tasks[1].split("test").images[3:4], 1)[0]
    assert table["class"][0] == expected.classes[0] and list(table["classes"][0]) == list(expected.classes)
    assert loaded.metadata.get_input_schema().input_names() == ["image", "task"]
    example = loaded.input_example
    assert loaded.predict(example)["task"][0] == "digits"
    assert "torch==" in (model / "requirements.txt").read_text()
    assert {path.name for path in (model / "data/learner").iterdir()} == {"card.json", "model.pt", "tasks.npz"}
    assert not list(model.rglob("*.pkl"))


@pytest.mark.slow
def test_tasks_need_not_be_named(learned, tmp_path):
    """``auto`` and ``any`` answer as `pipeline.predict` does; nothing said is ``auto``."""
    features, prototypes = Path(f"data/features/{STREAM}.npz"), Path(f"data/prototypes/{STREAM}.npz")
    identity = stream_identity(load(), learned.stream, features, prototypes)
    write_service(tmp_path, RUN, learned.stream, identity=identity)
    identifier = Identifier(extractor_of(features, load().extractor), identity)
    files = [f"pictures/{task}/{row:03}.png" for task in (0, 1) for row in range(6)]
    pixels = np.concatenate([learned.stream.tasks[task].split("test").images[:6] for task in (0, 1)])
    named = learned.predict(pixels[:1], 0)
    hows = ["auto", "any", "", None] * 3
    found = Service(tmp_path).answer([*map(encoded, files), encoded(files[0])], [*hows, "0"])
    for row, how in enumerate(hows):
        (expected,) = learned.predict_unnamed(pixels[row : row + 1], identifier, how or "auto")
        assert [task.index for task in found[row].tasks] == [task.index for task in expected.tasks]
        assert found[row].classes == expected.classes
        np.testing.assert_allclose(found[row].probabilities, expected.probabilities, atol=1e-5)
    assert found[-1].classes == named[0].classes


@pytest.mark.slow
def test_where_tasks_cannot_be_told_they_have_to_be_named(learned, tmp_path):
    image = encoded("pictures/0/000.png")
    for name in ("bare", "elsewhere"):
        (tmp_path / name).mkdir()
    write_service(tmp_path / "bare", RUN, learned.stream)
    with pytest.raises(RequestError, match="this model holds nothing to tell tasks by; give each image's task."):
        Service(tmp_path / "bare").answer([image], ["auto"])
    features, prototypes = Path(f"data/features/{STREAM}.npz"), Path(f"data/prototypes/{STREAM}.npz")
    identity = stream_identity(load(), learned.stream, features, prototypes)
    moved = dataclasses.replace(identity, weights="/nowhere/weights.pth")
    write_service(tmp_path / "elsewhere", RUN, learned.stream, identity=moved)
    service = Service(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match="tasks cannot be told here, give each image's task: .*/nowhere/weights.pth"):
        service.answer([image], ["any"])
    assert len(service.answer([image], ["0"])) == 1


@pytest.mark.slow
def test_the_learners_that_evaluate_recorded_are_loaded_from_the_registry(at_home, tmp_path, monkeypatch):
    """Every learner is a version that MLflow loads; the stage run again registers none; another process serves it."""
    project = Path(shutil.copytree(at_home, tmp_path / "project"))
    run(project, sys.executable, "-m", "pipeline.sync")
    run_stage(project, "evaluate", STREAM)
    assert "model versions registered" not in run(project, sys.executable, "-m", "pipeline.sync").stdout
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/mlflow.db")
    for method in METHODS:
        loaded = mlflow.pyfunc.load_model(f"models:/par-{STREAM}-{method}/1")
        predictor = Predictor.of_run(Path(f"runs/{STREAM}/{method}/0"), Path(f"data/streams/{STREAM}/0"))
        (expected,) = predictor.predict(predictor.stream.tasks[1].split("test").images[3:4], 1)
        table = loaded.predict(pd.DataFrame({"image": [encoded("pictures/1/003.png")], "task": ["textures"]}))
        assert table["classes"][0] == list(expected.classes)
        assert len(mlflow.MlflowClient().search_model_versions(f"name = 'par-{STREAM}-{method}'")) == 1


@pytest.fixture
def address(model: Path, at_home: Path) -> Iterator[str]:
    """The address of `mlflow models serve`, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--env-manager", "local", "--model-uri", str(model), "--port", str(port)]
    program = [sys.executable, "-m", "mlflow", "models", "serve", *arguments]
    log = model.parent / "server.log"
    with open(log, "w") as file:
        server = subprocess.Popen(program, env=environment(at_home), stdout=file, stderr=file, start_new_session=True)
    try:
        for _ in range(1200):
            assert server.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def post(address: str, body: bytes) -> tuple[int, dict]:
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.slow
def test_mlflows_server_answers_refuses_and_lives(address, learned):
    def rows(*records: dict) -> bytes:
        return json.dumps({"dataframe_records": records}).encode()

    images = [encoded(f"pictures/0/{row:03}.png") for row in range(20)]
    expected = [one.classes[0] for one in learned.predict(learned.stream.tasks[0].split("test").images[:20], 0)]

    def ask(row: int) -> tuple[int, dict]:
        return post(address, rows({"image": images[row], "task": "0"}))

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(ask, [row % 20 for row in range(1000)]))
    assert [status for status, _ in answers] == [200] * 1000
    assert [answer["predictions"][0]["class"] for _, answer in answers] == [expected[row % 20] for row in range(1000)]
    for body, words in (
        (rows({"image": "nonsense!", "task": "0"}), "image 0 is no base64 text"),
        (rows({"image": base64.b64encode(b"words").decode(), "task": "0"}), "image 0 is no image that Pillow reads"),
        (rows({"image": images[0], "task": "zebra"}), "has no task 'zebra'"),
        (rows({"image": "A" * 50_000_000, "task": "0"}), "image 0 has over 32 MiB"),
        (rows({"task": "0"}), "Model is missing inputs ['image']"),
        (rows(*[{"image": "", "task": "0"}] * 1025), "the request has 1025 images; at most 1024 are answered at once."),
        (b"{nonsense", "valid JSON"),
        (b"[1, 2]", "dictionary"),
        (b'{"images": []}', "dataframe_records"),
        (b"A" * 50_000_000, "valid JSON"),
    ):
        status, answer = post(address, body)
        assert 400 <= status < 500 and words in answer["message"] and "stack_trace" not in answer
    assert ask(0)[0] == 200


@pytest.mark.slow
def test_the_benchmark_prints_latency_throughput_errors_and_memory(model, at_home):
    arguments = [str(model), "--requests", "40"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serve", *arguments],
        cwd=REPOSITORY,
        env=environment(at_home) | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    *latencies, parallel, memory = done.stdout.splitlines()
    assert [line.split(":")[0] for line in latencies] == [
        f"{images} images a request, task {task}" for task in ("0", "auto") for images in (1, 256)
    ]
    assert all("p50 " in line and "p99 " in line and line.endswith("images/s") for line in latencies)
    assert parallel.startswith("40 requests by 8 clients in parallel: ") and parallel.endswith(" 0 errors")
    assert memory.startswith("resident memory of the server: ") and memory.endswith(" MB")
