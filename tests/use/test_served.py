"""A learner as an MLflow model: loaded, and served over HTTP by MLflow's own server."""

from __future__ import annotations

import base64
import json
import os
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

import numpy as np
import pandas as pd
import pytest

from par.use import service
from par.use.predictor import Predictor
from par.use.service import RequestError, Service, write_service
from pipeline import export as command
from tests.project import environment
from tests.use.conftest import STREAM


def encoded(path: str | Path) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()


@pytest.fixture
def learned(at_home: Path) -> Predictor:
    return Predictor.of_run(Path(f"runs/{STREAM}/par/0"), Path(f"data/streams/{STREAM}/0"))


@pytest.mark.slow
def test_a_service_answers_as_the_run(learned, tmp_path):
    write_service(learned, tmp_path)
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
    write_service(learned, tmp_path)
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
    import mlflow

    loaded = mlflow.pyfunc.load_model(str(model))
    table = loaded.predict(pd.DataFrame({"image": [encoded("pictures/1/003.png")], "task": ["textures"]}))
    expected = learned.predict(learned.stream.tasks[1].split("test").images[3:4], 1)[0]
    assert table["class"][0] == expected.classes[0] and list(table["classes"][0]) == list(expected.classes)
    assert loaded.metadata.get_input_schema().input_names() == ["image", "task"]
    example = loaded.input_example
    assert loaded.predict(example)["task"][0] == "digits"
    assert "torch==" in (model / "requirements.txt").read_text()
    assert {path.name for path in (model / "data/learner").iterdir()} == {"card.json", "model.pt"}
    assert not list(model.rglob("*.pkl"))


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
        answers = list(clients.map(ask, [row % 20 for row in range(100)]))
    assert [status for status, _ in answers] == [200] * 100
    assert [answer["predictions"][0]["class"] for _, answer in answers] == [expected[row % 20] for row in range(100)]
    for body, words in (
        (rows({"image": "nonsense!", "task": "0"}), "image 0 is no base64 text"),
        (rows({"image": base64.b64encode(b"words").decode(), "task": "0"}), "image 0 is no image that Pillow reads"),
        (rows({"image": images[0], "task": "zebra"}), "has no task 'zebra'"),
        (rows({"image": "A" * 50_000_000, "task": "0"}), "image 0 has over 32 MiB"),
        (rows({"image": images[0]}), "Model is missing inputs ['task']"),
        (b"{nonsense", "valid JSON"),
    ):
        status, answer = post(address, body)
        assert 400 <= status < 500 and words in answer["message"] and "stack_trace" not in answer
    assert ask(0)[0] == 200
