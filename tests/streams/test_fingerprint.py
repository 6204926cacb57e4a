"""Fingerprints of sources: what changes them, what does not, and how much is read for them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from par.streams import definition, fingerprint
from par.streams.embedded import EMBEDDED
from par.streams.fingerprint import PACKAGES, Digests, contents
from par.streams.official import OFFICIAL
from par.streams.reading import Request, SourceError
from par.streams.sources import load_source


def write_folder(place: Path, n_train: int = 3) -> Path:
    """An image folder of two classes."""
    generator = np.random.default_rng(0)
    for split, count in (("train", n_train), ("test", 2)):
        for name in ("circle", "square"):
            (place / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(place / split / name / f"{number}.png")
    return place


def zip_folder(place: Path) -> Path:
    with zipfile.ZipFile(place.with_suffix(".zip"), "w") as archive:
        for path in sorted(place.rglob("*.png")):
            archive.write(path, path.relative_to(place))
    shutil.rmtree(place)
    return place.with_suffix(".zip")


def write_idx(data_dir: Path) -> None:
    """MNIST with one image a split."""
    (data_dir / "MNIST/raw").mkdir(parents=True)
    for prefix in ("train", "t10k"):
        for name, shape in ((f"{prefix}-images-idx3-ubyte", (1, 28, 28)), (f"{prefix}-labels-idx1-ubyte", (1,))):
            content = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + bytes(int(np.prod(shape)))
            (data_dir / "MNIST/raw" / name).write_bytes(content)


def write_cifar(data_dir: Path) -> None:
    """CIFAR10's python version with one image a batch."""
    folder = data_dir / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [0]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a"]}))


@pytest.fixture
def settled(monkeypatch):
    """Files count as settled as soon as they are written."""
    monkeypatch.setattr(fingerprint, "SETTLED", -60.0)


@pytest.fixture
def scan(tmp_path, monkeypatch):
    """Scan ``data``, which a stream uses as source ``shapes``: what it contains, and how many files were read."""
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions/mine.yaml").write_text("tasks:\n  - {source: shapes}\n")
    monkeypatch.setattr(definition, "DEFINITIONS", tmp_path / "definitions")

    def scan(data_dir: Path = tmp_path / "data", full: bool = False):
        digests = Digests(tmp_path / "remembered", full)
        (content,) = contents("mine", data_dir, digests).values()
        return content, digests.n_read

    return scan


def another_pixel(path: Path) -> None:
    image = Image.open(path)
    image.putpixel((0, 0), tuple(255 - value for value in image.getpixel((0, 0))))
    image.save(path)


def test_every_embedded_data_set_has_its_package():
    assert set(PACKAGES) == set(EMBEDDED)


def test_unchanged_files_are_not_read_again(scan, settled, tmp_path):
    write_folder(tmp_path / "data/shapes")
    before, n_read = scan()
    assert n_read == 10 and before.there
    assert scan() == (before, 0)
    assert scan(full=True) == (before, 10)


def test_another_pixel_is_seen_and_only_that_file_is_read(scan, settled, tmp_path):
    place = write_folder(tmp_path / "data/shapes")
    before, _ = scan()
    another_pixel(place / "train/circle/0.png")
    after, n_read = scan()
    assert after != before and n_read == 1


def test_other_times_are_no_change(scan, settled, tmp_path):
    place = write_folder(tmp_path / "data/shapes")
    before, _ = scan()
    os.utime(place / "test/square/1.png", (0, 0))
    assert scan() == (before, 1)
    assert scan() == (before, 0)


def test_a_changed_file_of_the_same_size_whose_time_was_set_back_is_seen(scan, settled, tmp_path):
    place = write_folder(tmp_path / "data/shapes")
    before, _ = scan()
    path = place / "train/circle/0.png"
    times, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert scan()[0] != before


def test_a_file_that_has_just_been_written_is_read_again(scan, tmp_path):
    """It may be written once more within the same tick of the clock, and would look the same."""
    write_folder(tmp_path / "data/shapes")
    before, n_read = scan()
    assert scan() == (before, n_read) and n_read == 10


@pytest.mark.parametrize("change", ["rename", "remove", "add", "empty class", "note"])
def test_another_list_of_files_is_another_content(scan, settled, tmp_path, change):
    place = write_folder(tmp_path / "data/shapes")
    before, _ = scan()
    if change == "rename":
        (place / "train/circle/0.png").rename(place / "train/circle/9.png")
    elif change == "remove":
        (place / "train/circle/0.png").unlink()
    elif change == "add":
        shutil.copy(place / "train/circle/0.png", place / "test/circle/9.png")
    elif change == "empty class":
        (place / "train/triangle").mkdir()
    else:
        (place / "train/notes.txt").write_text("left aside")
    assert scan()[0] != before


def test_the_same_files_elsewhere_are_the_same_content_and_nothing_is_written_there(scan, settled, tmp_path):
    write_folder(tmp_path / "data/shapes")
    listed = sorted((tmp_path / "data").rglob("*"))
    before, _ = scan()
    assert sorted((tmp_path / "data").rglob("*")) == listed
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert scan(tmp_path / "copy")[0] == before


def test_a_zip_is_one_file(scan, settled, tmp_path):
    place = zip_folder(write_folder(tmp_path / "data/shapes"))
    before, n_read = scan()
    assert n_read == 1 and scan() == (before, 0)
    with zipfile.ZipFile(place, "a") as archive:
        archive.writestr("train/circle/9.png", b"")
    assert scan()[0] != before


def test_linked_folders_are_followed_and_circles_are_not(scan, settled, tmp_path):
    place = write_folder(tmp_path / "data/shapes")
    shutil.move(place / "train/circle", tmp_path / "elsewhere")
    (place / "train/circle").symlink_to(tmp_path / "elsewhere")
    (place / "train/square/up").symlink_to(place)
    (place / "train/square/nowhere").symlink_to(tmp_path / "nowhere")
    before, n_read = scan()
    assert n_read == 10
    another_pixel(tmp_path / "elsewhere/0.png")
    assert scan()[0] != before


def test_a_damaged_memory_is_forgotten(scan, settled, tmp_path):
    write_folder(tmp_path / "data/shapes")
    before, _ = scan()
    for path in (tmp_path / "remembered").iterdir():
        path.write_text(path.read_text()[:-10])
    assert scan() == (before, 10)


def test_a_missing_data_set_is_not_there(scan, tmp_path):
    content, n_read = scan()
    assert not content.there and content.words is None and n_read == 0


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SourceError, match="gone.zip cannot be read"):
        Digests(tmp_path).of([tmp_path / "gone.zip"])


def test_a_data_set_to_be_downloaded_has_the_words_that_it_will_have(scan, tmp_path, monkeypatch):
    """Otherwise the run after the one that downloaded it would build the stream again."""
    parts = {f"{split}_32x32.mat": split.encode() for split in ("train", "test")}
    published = {name: hashlib.md5(content).hexdigest() for name, content in parts.items()}
    monkeypatch.setitem(OFFICIAL, "shapes", dataclasses.replace(OFFICIAL["svhn"], published=published))
    before, _ = scan()
    assert before.words and not before.there
    (tmp_path / "data").mkdir()
    for name, content in parts.items():
        (tmp_path / "data" / name).write_bytes(content)
    after, _ = scan()
    assert after.there and after.words == before.words


def test_every_data_set_with_a_download_has_its_checksums():
    assert {name for name, entry in OFFICIAL.items() if entry.download} == {
        name for name, entry in OFFICIAL.items() if entry.published
    }


WATCHED: list[set[str]] = []  # an audit hook cannot be taken away again: it looks here where to put what it sees
sys.addaudithook(lambda event, arguments: WATCHED[0].add(str(arguments[0])) if WATCHED and event == "open" else None)


@pytest.mark.parametrize("dataset", ["folder", "zip", "mnist", "cifar10"])
def test_every_file_that_a_source_is_read_from_is_in_its_fingerprint(tmp_path, dataset):
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    if dataset == "mnist":
        write_idx(data_dir)
    elif dataset == "cifar10":
        write_cifar(data_dir)
    else:
        write_folder(data_dir / dataset)
        if dataset == "zip":
            zip_folder(data_dir / dataset)

    def opened(what) -> set[str]:
        WATCHED.append(set())
        what()
        return {path for path in WATCHED.pop() if path.startswith(str(data_dir))}

    request = Request(dataset, dataset, data_dir)
    (tmp_path / "mine.yaml").write_text(f"tasks:\n  - {{source: {dataset}}}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definition, "DEFINITIONS", tmp_path)
        digested = opened(lambda: contents("mine", data_dir, Digests(tmp_path / "remembered")))
    read = opened(lambda: load_source(request))
    assert read and read <= digested
