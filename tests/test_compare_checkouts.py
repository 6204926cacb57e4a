"""The comparison of two checkouts, on files written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from par.files import write_csv, write_json, write_npz, write_tensors
from tests.compare_checkouts import compare, digests


def learned(
    folder: Path, seconds: float = 1.0, accuracy: float = 0.5, weight: float = 1.0, label: int = 0, task: int = 0
) -> Path:
    """What a learner leaves on a stream."""
    run = folder / "runs/demo/par/0"
    write_npz(run / "predictions.npz", {"0/0": np.array([label], np.uint8)})
    write_tensors(run / "model.pt", [{"tasks": [task], "state": {"head": torch.tensor([weight, 2.0]), "bias": None}}])
    write_json(run / "steps.json", {"seconds": seconds, "steps": [{"task": 0, "seconds": seconds}]})
    write_csv(run / "log.csv", ["epoch", "loss", "seconds"], [{"epoch": 0, "loss": 0.25, "seconds": seconds}])
    write_json(folder / "results/demo.json", {"par": {"ap": accuracy, "seconds_search": seconds}})
    return folder


def test_times_do_not_count(tmp_path):
    before, after = digests(learned(tmp_path / "a")), digests(learned(tmp_path / "b", seconds=2.0))
    assert compare(before, after) == [] and len(before) == 6  # five files, one tensor


CHANGES = {
    "results/demo.json": {"accuracy": np.nextafter(0.5, 1)},
    "runs/demo/par/0/model.pt: /0/state/head": {"weight": float(np.nextafter(np.float32(1), np.float32(2)))},
    "runs/demo/par/0/predictions.npz": {"label": 1},
    "runs/demo/par/0/model.pt": {"task": 1},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_last_bit_of_a_number_counts(tmp_path, name):
    before, after = digests(learned(tmp_path / "a")), digests(learned(tmp_path / "b", **CHANGES[name]))
    assert compare(before, after) == [f"differs: {name}"]


def test_what_one_side_lacks_is_named(tmp_path):
    before = digests(learned(tmp_path))
    (tmp_path / "results/demo.json").unlink()
    assert compare(before, digests(tmp_path)) == ["only before: results/demo.json"]
    assert compare(digests(tmp_path), before) == ["only after: results/demo.json"]
