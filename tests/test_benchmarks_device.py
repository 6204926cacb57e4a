"""benchmarks/device.py on the CPU, and what is packed for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from benchmarks import device, pack
from par.files import read_json
from par.streams import build_stream, load_stream
from tests.project import REPOSITORY, environment


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.device", "--device", "cpu", "--quick"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=tmp_path, env=environment(REPOSITORY), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_json(tmp_path / "device.json")
    assert set(found) == set(device.PARTS) and all(part["rows"] for part in found.values())
    assert all(row["same bits twice"] and row["near"] for row in found["methods"]["rows"])
    assert [row["way"] for row in found["capture"]["rows"]] == ["called", "captured"] * 4
    assert (tmp_path / "device.md").read_text().count("## ") == len(device.PARTS)


def test_a_part_that_fails_leaves_its_error_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    def broken(plan):
        yield {"what": "before"}
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(device, "PARTS", {"broken": broken, "whole": lambda plan: iter([{"what": "after"}])})
    plan = device.Plan(torch.device("cpu"), None, tmp_path, quick=True)
    device.measure(plan, list(device.PARTS))
    found = read_json(tmp_path / "device.json")
    assert found["broken"]["rows"] == [{"what": "before"}]
    assert found["broken"]["error"] == "OutOfMemoryError: no memory left"
    assert found["whole"]["rows"] == [{"what": "after"}] and "error" not in found["whole"]
    assert "failed: OutOfMemoryError: no memory left" in (tmp_path / "device.md").read_text()


def test_packed_tasks_are_those_of_the_stream(tmp_path):
    build_stream("demo_split", 0, tmp_path, tmp_path / "stream")
    pack.first_tasks(tmp_path / "stream", 2, tmp_path / "packed")
    whole, packed = load_stream(tmp_path / "stream").tasks, load_stream(tmp_path / "packed").tasks
    assert len(packed) == 2
    for task, other in zip(packed, whole):
        assert task.digest == other.digest
        for split in ("train", "valid", "test"):
            assert (task.split(split).images == other.split(split).images).all()
            assert (task.split(split).labels == other.split(split).labels).all()


def test_packed_wheels_have_the_locked_versions():
    requirements = pack.pinned((REPOSITORY / "requirements.lock").read_text())
    assert len(requirements) == len(pack.WHEELS) and all("==" in item for item in requirements)
