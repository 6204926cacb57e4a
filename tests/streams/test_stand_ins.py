"""The small archives that streams use in place of data sets, cut from synthetic copies of the official layouts."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from par.schema import read_yaml
from par.streams import definition, stand_ins
from par.streams.definition import DEFINITIONS
from par.streams.fingerprint import Digests, contents
from par.streams.official import GTSRB_MD5, GTSRB_PARTS, OFFICIAL, STAND_INS, StandIn
from par.streams.reading import Request, SourceError
from par.streams.sources import load_source
from par.streams.stream import build_stream

SMALL = {
    "gtsrb-ten": StandIn("gtsrb", train=4, test=2, size=32, classes=("00001", "00007")),
    "dtd-ten": StandIn("dtd", train=2, test=1, size=64, classes=("banded",)),
    "miniimagenet-small": StandIn("miniimagenet", train=2, test=3),
}


def picture(seed: int, height: int = 40, width: int = 33) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def write_gtsrb(root: Path) -> None:
    """Three classes of two tracks with three images each, and six test images, unpacked as torchvision does."""
    seed, rows = 0, ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for label in (1, 7, 9):
        folder = root / GTSRB_PARTS[0] / f"{label:05}"
        folder.mkdir(parents=True)
        (folder / f"GT-{label:05}.csv").write_text("Filename;ClassId\n")
        for track in range(2):
            for frame in range(3):
                picture(seed := seed + 1, 30 + frame, 40).save(folder / f"{track:05}_{frame:05}.ppm")
    (root / GTSRB_PARTS[1]).mkdir(parents=True)
    for number, label in enumerate((9, 7, 1, 1, 7, 1)):
        picture(seed := seed + 1).save(root / GTSRB_PARTS[1] / f"{number:05}.ppm")
        rows.append(f"{number:05}.ppm;33;40;5;5;28;35;{label}")
    (root / GTSRB_PARTS[2]).write_text("\n".join(rows) + "\n")


def pack_gtsrb(root: Path, folder: Path) -> dict[str, str]:
    """The three official archives of what :func:`write_gtsrb` wrote; returns their checksums."""
    folder.mkdir(parents=True)
    for name, part in zip(GTSRB_MD5, GTSRB_PARTS):
        with zipfile.ZipFile(folder / name, "w") as archive:
            for path in [root / part, *sorted((root / part).rglob("*"))]:
                archive.write(path, path.relative_to(root))
    return {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in GTSRB_MD5}


def write_dtd(root: Path) -> None:
    lists = {"train1": (0, 2), "val1": (2, 3), "test1": (3, 5)}
    (root / "dtd/labels").mkdir(parents=True)
    for part, numbers in lists.items():
        names = [f"{label}/{label}_{number}.jpg" for label in ("banded", "dotted") for number in range(*numbers)]
        (root / f"dtd/labels/{part}.txt").write_text("\n".join(names) + "\n")
        for seed, name in enumerate(names):
            (root / "dtd/images" / name).parent.mkdir(parents=True, exist_ok=True)
            picture(seed, 80, 90).save(root / "dtd/images" / name)


def write_miniimagenet(root: Path) -> None:
    for rank, part in enumerate(("train", "val", "test")):
        pixels = np.random.default_rng(rank).integers(0, 256, (63, 84, 84, 3), dtype=np.uint8)
        content = pickle.dumps({"image_data": pixels, "class_dict": {f"n{rank}": list(range(63))}})
        (root / f"mini-imagenet-cache-{part}.pkl").write_bytes(content)


def test_gtsrb_is_the_same_unpacked_and_packed(tmp_path, monkeypatch):
    write_gtsrb(tmp_path / "one/gtsrb")
    md5 = pack_gtsrb(tmp_path / "one/gtsrb", tmp_path / "two")
    with pytest.raises(SourceError, match="GTSRB-Training_fixed.zip has the MD5 checksum"):
        load_source(Request("gtsrb", "gtsrb", tmp_path / "two", 32))
    for name, value in md5.items():
        monkeypatch.setitem(GTSRB_MD5, name, value)
    one, two = (load_source(Request("gtsrb", "gtsrb", tmp_path / place, 32)) for place in ("one", "two"))
    assert one.digest == two.digest and one.classes == two.classes == ("00001", "00007", "00009")
    np.testing.assert_array_equal(one.images["train"], two.images["train"])
    np.testing.assert_array_equal(two.labels["train"], np.repeat(range(3), 6))
    np.testing.assert_array_equal(two.labels["test"], [2, 1, 0, 0, 1, 0])
    assert two.images["test"].shape == (6, 32, 32, 3)
    assert [path.name for path in OFFICIAL["gtsrb"].present(tmp_path / "two")] == list(GTSRB_MD5)
    (tmp_path / "two" / "GTSRB_Final_Test_GT.zip").unlink()
    assert OFFICIAL["gtsrb"].present(tmp_path / "two") == []


def test_a_test_image_of_gtsrb_without_a_label_is_refused(tmp_path):
    write_gtsrb(tmp_path / "gtsrb")
    labels = tmp_path / "gtsrb" / GTSRB_PARTS[2]
    labels.write_text("\n".join(labels.read_text().splitlines()[:-1]))
    with pytest.raises(SourceError, match="GT-final_test.csv lacks GTSRB/Final_Test/Images/00005.ppm"):
        load_source(Request("gtsrb", "gtsrb", tmp_path, 32))
    labels.write_text(labels.read_text().replace(";9\n", ";40\n") + "\n00005.ppm;;;;;;;1\n")
    with pytest.raises(SourceError, match="the class 00040 of a test image has no training image"):
        load_source(Request("gtsrb", "gtsrb", tmp_path, 32))


def test_every_stand_in_is_cut_from_the_official_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stand_ins, "STAND_INS", SMALL)
    write_gtsrb(tmp_path / "gtsrb")
    write_dtd(tmp_path)
    write_miniimagenet(tmp_path)
    assert stand_ins.main(["--data-dir", str(tmp_path)]) == 0
    assert f"{tmp_path}/gtsrb-ten.zip: 12 images" in capsys.readouterr().out
    for name, part in SMALL.items():
        whole = load_source(Request(part.dataset, part.dataset, tmp_path, part.size, "bicubic"))
        cut = load_source(Request(part.dataset, name, tmp_path))
        assert cut.classes == tuple(sorted(part.classes or whole.classes)) and not cut.left_aside
        for split, count in (("train", part.train), ("test", part.test)):
            assert Counter(cut.labels[split].tolist()) == dict.fromkeys(range(len(cut.classes)), count)
            for label, name_of in enumerate(cut.classes):
                rows = whole.rows(split, whole.classes.index(name_of))[:count]
                np.testing.assert_array_equal(cut.images[split][cut.rows(split, label)], whole.images[split][rows])


def test_cutting_again_gives_the_same_bytes_and_replaces_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stand_ins, "STAND_INS", SMALL)
    write_gtsrb(tmp_path / "gtsrb")
    command, archive = ["gtsrb-ten", "--data-dir", str(tmp_path)], tmp_path / "gtsrb-ten.zip"
    assert stand_ins.main(command) == 0
    first = archive.read_bytes()
    archive.write_bytes(b"mine")
    assert stand_ins.main(command) == 0 and archive.read_bytes() == b"mine"
    assert f"{archive} is there already; remove it to make it anew." in capsys.readouterr().out
    archive.unlink()
    assert stand_ins.main(command) == 0 and archive.read_bytes() == first


def test_what_cannot_be_cut_is_said_in_one_sentence_after_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stand_ins, "STAND_INS", SMALL | {"dtd-ten": StandIn("dtd", 9, 1, 64, ("banded",))})
    write_gtsrb(tmp_path / "gtsrb")
    write_dtd(tmp_path)
    assert stand_ins.main(["--data-dir", str(tmp_path)]) == 1
    few, missing = capsys.readouterr().err.splitlines()
    assert few.startswith("dtd-ten: dtd-ten.zip needs 9 train images of the class 'banded' of dtd, which has 3; ")
    assert missing.startswith("miniimagenet-small: Data set 'miniimagenet' was not found: looked for ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dtd", "gtsrb", "gtsrb-ten.zip"]
    monkeypatch.setitem(stand_ins.STAND_INS, "dtd-ten", StandIn("dtd", 1, 1, 64, ("striped",)))
    assert stand_ins.main(["dtd-ten", "--data-dir", str(tmp_path)]) == 1
    assert "needs the class 'striped' of dtd, which has 2 others" in capsys.readouterr().err


def test_a_stream_that_names_a_file_is_not_given_the_official_images_in_its_place(tmp_path, monkeypatch):
    write_dtd(tmp_path / "data")
    monkeypatch.setattr(definition, "DEFINITIONS", tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "image_size: 32\ntasks:\n  - {source: dtd, train: 1, valid: 1, test: 1}\n"
        "sources: {dtd: {file: dtd-ten, resize: true}}\n"
    )
    with pytest.raises(SourceError) as caught:
        build_stream("mine", 0, tmp_path / "data", tmp_path / "stream")
    message = str(caught.value)
    assert (
        f"looked for the image folder dtd-ten/ or dtd-ten.zip with <split>/<class>/<image> in {tmp_path}/data"
        in message
    )
    assert "the stream asks for dtd-ten, which has no official archive" in message
    assert "`python -m par.streams.stand_ins dtd-ten` cuts it from the official images" in message
    (content,) = contents("mine", tmp_path / "data", Digests(tmp_path / "digests")).values()
    assert content.words is None and not content.there


def test_the_stand_ins_are_those_that_the_streams_name():
    named = {}
    for path in DEFINITIONS.glob("*.yaml"):
        for alias, settings in (read_yaml(path).get("sources") or {}).items():
            if settings and (file := settings.get("file")):
                named[file] = settings.get("dataset", alias)
    assert named == {name: part.dataset for name, part in STAND_INS.items()}
    assert all(len(part.classes) in (0, 10) for part in STAND_INS.values())


@pytest.mark.parametrize("name", STAND_INS)
def test_the_archives_of_the_committed_report_have_the_same_classes_and_counts(real_data, name):
    part = STAND_INS[name]
    with zipfile.ZipFile(real_data / f"{name}.zip") as archive:
        counts = Counter(file.rpartition("/")[0] for file in archive.namelist() if not file.endswith("/"))
        sizes = {Image.open(io.BytesIO(archive.read(file))).size for file in archive.namelist()[:5]}
    classes = set(part.classes) or {place.split("/")[1] for place in counts}
    assert counts == {f"{s}/{c}": n for s, n in (("train", part.train), ("test", part.test)) for c in classes}
    assert sizes == {(part.size or 84,) * 2} and len(classes) == (10 if part.classes else 100)
