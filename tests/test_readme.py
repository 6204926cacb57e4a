"""The README's examples do what it says: a new method and a new stream go through the whole pipeline."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from par.files import read_json

REPOSITORY = Path(__file__).resolve().parent.parent
PARAMS = """
preset: mine
streams:
  - mine
seeds:
  - 0
methods:
  l2:
    weight: 0.5
  finetune: {}
  par: {}
extractor:
  network: efficientnet_lite0
recipe:
  epochs: 2
  batch_size: 16
network:
  width: 8
expert:
  cells: 2
  channels: 4
search:
  epochs: 2
"""


def blocks(kind: str) -> dict[str, str]:
    """Code blocks of the README that stand below ``<!-- kind: path -->``."""
    text = (REPOSITORY / "README.md").read_text()
    return dict(re.findall(rf"<!-- {kind}: (\S+) -->\n```\w+\n(.*?)```", text, flags=re.DOTALL))


def write_images(folder: Path, shape: tuple[int, ...]) -> None:
    """Two classes of noise, bright and dark, as an image folder."""
    generator = np.random.default_rng(len(shape))
    for split, count in (("train", 40), ("test", 10)):
        for label, name in enumerate(("bright", "dark")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 100, shape) + 150 * (1 - label)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{number}.png")


def test_the_examples_have_at_most_15_lines():
    written = blocks("file")
    assert len(written) == 2
    for path, content in written.items():
        lines = [line for line in content.splitlines() if line.strip()]
        assert len(lines) <= 15, path


@pytest.mark.slow
def test_a_new_method_and_a_new_stream_go_through_every_stage(tmp_path):
    for folder in ("par", "pipeline"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, content in blocks("file").items():
        (tmp_path / path).write_text(content)
    for path, line in blocks("line").items():
        registry = tmp_path / path
        registry.write_text(registry.read_text().replace("METHODS = {\n", "METHODS = {\n" + line))
    write_images(tmp_path / "data/sources/pets", (40, 30, 3))
    write_images(tmp_path / "data/sources/signs", (20, 20))
    (tmp_path / "params.yaml").write_text(PARAMS)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "DVC_ROOT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    for stage in ("stream", "extract", "prototypes", "route", "search", "train", "evaluate", "tables"):
        arguments = [] if stage == "tables" else ["--stream", "mine"]
        command = [sys.executable, "-m", f"pipeline.{stage}", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{stage}\n{done.stdout}\n{done.stderr}"
    learners = read_json(tmp_path / "results/mine.json")["learners"]
    assert set(learners) == {"l2", "finetune", "par"}
    assert len(learners["l2"]["0"]["accuracy"]) == 3
    metrics = json.loads((tmp_path / "reports/mine/metrics.json").read_text())
    assert "l2" in json.dumps(metrics)
