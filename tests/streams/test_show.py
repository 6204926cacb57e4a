"""The table of tasks and the contact sheet."""

from __future__ import annotations

import numpy as np
from PIL import Image

from par.streams import build_stream
from par.streams.show import COLUMNS, GAP, LABEL, TILE, contact_sheet, main, table


def test_the_sheet_shows_ten_training_images_of_every_task(tmp_path):
    stream = build_stream("demo_in", 0, tmp_path, tmp_path / "s")
    sheet = np.asarray(contact_sheet(stream))
    step = TILE + GAP
    assert sheet.shape == (6 * step + GAP, LABEL + COLUMNS * step + GAP, 3)
    for row, task in enumerate(stream.tasks):
        train = task.split("train")
        known = {image.transpose(1, 2, 0).tobytes() for image in train.images}
        for column in range(COLUMNS):
            left, top = LABEL + column * step, GAP + row * step
            tile = Image.fromarray(sheet[top : top + TILE, left : left + TILE])
            assert np.asarray(tile.resize((16, 16), Image.Resampling.NEAREST)).tobytes() in known


def test_the_table_has_a_line_for_every_task(tmp_path):
    stream = build_stream("demo_out", 0, tmp_path, tmp_path / "s")
    lines = table(stream).splitlines()
    assert len(lines) == 7 and lines[0].split()[:3] == ["task", "name", "source"]
    for task, line in zip(stream.tasks, lines[1:]):
        assert task.name in line and task.digest[:8] in line and str(task.counts["train"]) in line
    assert "labels rotated by one" in lines[-1]


def test_the_command_prints_and_draws(tmp_path, capsys):
    out = tmp_path / "sheet.png"
    assert main(["demo_pl", "--seed", "1", "--data-dir", str(tmp_path), "--out", str(out)]) == 0
    assert "mnist5k" in capsys.readouterr().out
    assert Image.open(out).size == (LABEL + COLUMNS * (TILE + GAP) + GAP, 5 * (TILE + GAP) + GAP)


def test_the_command_fails_with_one_sentence(tmp_path, capsys):
    assert main(["demo_plll", "--out", str(tmp_path / "sheet.png")]) == 1
    assert "'demo_plll' is unknown" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
