"""The README's examples do what it says: a new method and a new stream go through the whole pipeline."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tests.project
from par.files import read_json
from tests.project import REPOSITORY, STAGES, make_project, run_stage

PARAMS = tests.project.PARAMS.replace("tiny", "mine").replace("  independent: {}", "  l2:\n    weight: 0.5")


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
    written = blocks("file")
    folder = make_project(tmp_path, written["par/streams/definitions/mine.yaml"], PARAMS, stream="mine")
    for path, content in written.items():
        (folder / path).write_text(content)
    for path, line in blocks("line").items():
        registry = folder / path
        registry.write_text(registry.read_text().replace("METHODS = {\n", "METHODS = {\n" + line))
    write_images(folder / "data/sources/pets", (40, 30, 3))
    write_images(folder / "data/sources/signs", (20, 20))
    for stage in STAGES:
        run_stage(folder, stage, "mine")
    learners = read_json(folder / "results/mine.json")["learners"]
    assert set(learners) == {"l2", "finetune", "par"}
    assert len(learners["l2"]["0"]["accuracy"]) == 3
    assert "l2" in (folder / "reports/mine/metrics.json").read_text()
