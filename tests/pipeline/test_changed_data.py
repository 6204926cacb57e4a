"""Data sets that change, vanish or come back after a success, as DVC's user meets them."""

from __future__ import annotations

import os
import shutil
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from par.files import read_json
from tests.project import PARAMS, REPOSITORY, make_project, run, stages_run

DEFINITION = """
image_size: 8
tasks:
  - {source: pets, train: 4, valid: 2}
  - {source: signs, train: 4, valid: 2}
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A git repository whose stream is made of a folder, pets, and a zip, signs, and is built."""
    folder = make_project(tmp_path_factory.mktemp("changing"), DEFINITION, PARAMS)
    for name in (".gitignore", ".dvcignore"):
        shutil.copy(REPOSITORY / name, folder)
    generator = np.random.default_rng(0)
    for source in ("pets", "signs"):
        for split, count in (("train", 6), ("test", 2)):
            for label in ("a", "b"):
                place = folder / "data/sources" / source / split / label
                place.mkdir(parents=True)
                for number in range(count):
                    Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8)).save(place / f"{number}.png")
    zip_signs(folder, folder / "data/sources/signs")
    for command in ("git init -q", "git config user.email test@example.com", "git config user.name test"):
        run(folder, *command.split())
    run(folder, "dvc", "init", "-q")
    time.sleep(3)  # until the files no longer count as just written
    assert stages_run(run(folder, "dvc", "repro", "stream")) == {"fingerprints", "stream@tiny"}
    run(folder, "git", "add", "-A")
    run(folder, "git", "commit", "-qm", "built")
    return folder


@pytest.fixture
def project(built, tmp_path) -> Path:
    """A copy, with all its files' times, that a test may change."""
    folder = tmp_path / "project"
    run(built, "cp", "-a", str(built), str(folder))
    return folder


def zip_signs(folder: Path, images: Path) -> None:
    with zipfile.ZipFile(folder / "data/sources/signs.zip", "w") as archive:
        for path in sorted(images.rglob("*.png")):
            archive.write(path, path.relative_to(images))
    shutil.rmtree(images)


def change_pets(folder: Path) -> None:
    path = folder / "data/sources/pets/train/a/0.png"
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)


def change_signs(folder: Path) -> None:
    images = folder / "unpacked"
    with zipfile.ZipFile(folder / "data/sources/signs.zip") as archive:
        archive.extractall(images)
    path = images / "train/b/1.png"
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    zip_signs(folder, images)


def digests(folder: Path) -> list[str]:
    return [task["digest"] for task in read_json(folder / "data/streams/tiny/0/stream.json")["tasks"]]


def read_anew(output: str) -> int:
    return int(output.split("new or changed files read: ")[1].split()[0])


def test_with_nothing_changed_one_process_is_started_and_no_file_is_read(built):
    """That process writes no output either, so that DVC has nothing to hash."""
    before = {path: path.stat().st_mtime_ns for path in (built / "data/fingerprints").iterdir()}
    done = run(built, "dvc", "repro", "stream")
    assert stages_run(done) == {"fingerprints"} and read_anew(done.stdout) == 0
    assert {path: path.stat().st_mtime_ns for path in (built / "data/fingerprints").iterdir()} == before
    assert "up to date" in run(built, "dvc", "status", "stream").stdout


@pytest.mark.parametrize("change, task", [(change_pets, 0), (change_signs, 1)])
def test_another_pixel_is_seen_and_neither_dvc_nor_its_run_cache_serves_the_old(project, change, task):
    before = digests(project)
    change(project)
    shutil.rmtree(project / "data/streams/tiny")
    run(project, sys.executable, "-m", "pipeline.fingerprints")
    assert "data/fingerprints/tiny.json" in run(project, "dvc", "status", "stream").stdout
    assert stages_run(run(project, "dvc", "repro", "stream")) == {"fingerprints", "stream@tiny"}
    assert [old != new for old, new in zip(before, digests(project))] == [number == task for number in range(2)]


def test_the_data_of_before_bring_back_what_was_built_from_them(project, tmp_path):
    before = digests(project)
    shutil.copytree(project / "data/sources", tmp_path / "kept")
    change_pets(project)
    run(project, "dvc", "repro", "stream")
    assert digests(project) != before
    shutil.copytree(tmp_path / "kept", project / "data/sources", dirs_exist_ok=True)
    assert stages_run(run(project, "dvc", "repro", "stream")) == {"fingerprints"}
    assert digests(project) == before


def test_other_times_run_nothing(project):
    for path in (project / "data/sources").rglob("*"):
        os.utime(path)
    done = run(project, "dvc", "repro", "stream")
    assert stages_run(done) == {"fingerprints"} and read_anew(done.stdout) == 17


def test_what_was_built_outlives_its_data_and_dvc_says_what_is_missing(project):
    before = digests(project)
    shutil.rmtree(project / "data/sources/pets")
    done = run(project, "dvc", "repro", "stream")
    assert stages_run(done) == {"fingerprints"}
    sentences = [line for line in done.stdout.splitlines() if "pets is not in" in line]
    assert len(sentences) == 1 and "stays in use" in sentences[0]
    shutil.rmtree(project / "data/streams/tiny")
    run(project, "dvc", "repro", "stream")
    assert digests(project) == before


def test_data_that_were_never_there_stop_the_stream_with_its_own_words(project):
    (project / "par/streams/definitions/tiny.yaml").write_text(DEFINITION.replace("pets", "birds"))
    done = run(project, "dvc", "repro", "stream", check=False)
    assert done.returncode != 0 and stages_run(done) == {"fingerprints", "stream@tiny"}
    assert "birds is not in" in done.stdout and "stream tiny: Data set 'birds' was not found" in done.stderr


def test_data_that_changed_behind_the_fingerprint_are_refused(project):
    """`dvc repro --single-item` leaves the stage fingerprints out."""
    change_pets(project)
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("seeds:\n  - 0", "seeds:\n  - 1"))
    done = run(project, "dvc", "repro", "--single-item", "stream@tiny", check=False)
    assert done.returncode != 0 and "run dvc repro again" in done.stderr
    assert not (project / "data/streams/tiny").exists()
    run(project, "dvc", "repro", "stream")
    assert (project / "data/streams/tiny/1").is_dir()
