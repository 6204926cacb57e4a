"""Image folders and zips as people bring them: what is read, what is left aside for which reason, what is refused."""

from __future__ import annotations

import io
import os
import stat
import unicodedata
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from par.streams.folders import image_folder
from par.streams.reading import LeftAside, Request, Source, SourceError
from par.streams.sources import load_source

LAYOUTS = ("folder", "zip")


def picture(seed: int, format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, format)
    return buffer.getvalue()


def files_of(*extra: str, splits=("train", "test"), classes=("a", "b"), prefix: str = "") -> dict[str, bytes]:
    """A small data set of two images a class and split, and ``extra`` files."""
    names = [f"{prefix}{split}/{label}/{number}.png" for split in splits for label in classes for number in range(2)]
    return {name: picture(seed) for seed, name in enumerate([*names, *extra])}


def lay_out(root: Path, kind: str, files: Mapping[str, bytes], name: str = "own") -> Path:
    """Write ``files`` as a folder or as a zip; names with a closing slash are folders."""
    root.mkdir(parents=True, exist_ok=True)
    if kind == "zip":
        with zipfile.ZipFile(root / f"{name}.zip", "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)
        return root / f"{name}.zip"
    for path, content in files.items():
        place = root / name / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    return root / name


def load(root: Path, name: str = "own") -> Source:
    return load_source(Request(name, name, root))


def assert_same(one: Source, two: Source) -> None:
    assert (one.classes, one.digest, one.images.keys()) == (two.classes, two.digest, two.images.keys())
    for split in one.images:
        np.testing.assert_array_equal(one.images[split], two.images[split])
        np.testing.assert_array_equal(one.labels[split], two.labels[split])


@pytest.fixture
def plain(tmp_path) -> Source:
    return image_folder(Request("own", "own", tmp_path), lay_out(tmp_path / "plain", "folder", files_of()))


# --- read ---


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(
    "rename, note",
    [
        (lambda name: f"top/{name}", "The top folder top/ was skipped."),
        (lambda name: name.replace("train", "Train").replace("test", "TEST"), "Train/ is used as train/."),
        (lambda name: name.replace("train", "training").replace("test", "Testing"), "Testing/ is used as test/."),
        (lambda name: name.replace("/", "\\"), None),
        (lambda name: f"./{name}", None),
        (lambda name: f"top\\{name}".replace("/", "\\"), "The top folder top/ was skipped."),
    ],
    ids=["top folder", "case", "training", "backslashes", "dot", "top folder and backslashes"],
)
def test_other_forms_of_the_layout_are_the_same_source(tmp_path, plain, kind, rename, note):
    lay_out(tmp_path, kind, {rename(name): content for name, content in files_of().items()})
    source = load(tmp_path)
    assert_same(source, plain)
    assert source.left_aside == () and (note in source.notes if note else source.notes == ())


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("name", ["val", "Valid", "validation"])
def test_a_validation_split_is_read(tmp_path, plain, kind, name):
    lay_out(tmp_path, kind, files_of(splits=("train", "test", name)))
    source = load(tmp_path)
    np.testing.assert_array_equal(source.images["train"], plain.images["train"])
    np.testing.assert_array_equal(source.labels["valid"], [0, 0, 1, 1])
    first = np.asarray(Image.open(io.BytesIO(picture(8))))
    np.testing.assert_array_equal(source.images["valid"][0], first)
    assert source.digest != plain.digest
    assert source.notes == (f"{name}/ is used as the validation split.",)


def test_all_suffixes_of_pictures_are_read_in_any_case(tmp_path):
    formats = {
        "png": "PNG",
        "JPG": "JPEG",
        "jfif": "JPEG",
        "jpe": "JPEG",
        "jp2": "JPEG2000",
        "Tga": "TGA",
        "pgm": "PPM",
    }
    formats |= {"pnm": "PPM", "ico": "ICO", "tiff": "TIFF", "bmp": "BMP", "GIF": "GIF", "webp": "WEBP"}
    files = files_of()
    for seed, (suffix, format) in enumerate(formats.items()):
        files[f"train/a/x{seed}.{suffix}"] = picture(seed, format)
    lay_out(tmp_path, "folder", files)
    source = load(tmp_path)
    assert len(source.rows("train", 0)) == 2 + len(formats) and source.left_aside == ()


def test_a_file_is_what_its_content_says(tmp_path):
    lay_out(tmp_path, "zip", files_of() | {"train/a/x.png": picture(0, "JPEG")})
    assert len(load(tmp_path).rows("train", 0)) == 3


@pytest.mark.parametrize("kind", LAYOUTS)
def test_names_in_two_unicode_forms_are_one_class(tmp_path, kind):
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    files = {f"train/{composed}/0.png": picture(0), f"test/{decomposed}/0.png": picture(1)}
    files |= {f"train/b/{name}.png": picture(seed) for seed, name in enumerate((composed, decomposed), 2)}
    files |= {"test/b/0.png": picture(4)}
    lay_out(tmp_path, kind, files)
    source = load(tmp_path)
    assert source.classes == ("b", composed) and source.left_aside == ()
    both = {image.tobytes() for image in source.images["train"][source.rows("train", 0)]}
    assert both == {np.asarray(Image.open(io.BytesIO(picture(seed)))).tobytes() for seed in (2, 3)}


def test_linked_folders_are_followed(tmp_path, plain):
    place = lay_out(tmp_path, "folder", files_of())
    (tmp_path / "elsewhere").mkdir()
    (place / "train" / "b").rename(tmp_path / "elsewhere" / "b")
    (place / "train" / "b").symlink_to(tmp_path / "elsewhere" / "b", target_is_directory=True)
    (place / "test").rename(tmp_path / "elsewhere" / "test")
    (place / "test").symlink_to("../elsewhere/test", target_is_directory=True)
    source = load(tmp_path)
    assert_same(source, plain)
    assert source.notes == ("2 linked folders: followed; e.g. test.",)


# --- left aside ---


@pytest.mark.parametrize("kind", LAYOUTS)
def test_everything_else_is_counted_with_its_reason(tmp_path, plain, kind):
    extra = {
        "hidden, or of the operating system": [
            "__MACOSX/train/a/._0.png",
            "train/.DS_Store",
            "train/a/.hidden.png",
            "train/.cache/0.png",
            "train/a/Thumbs.db",
        ],
        "not an image": ["README.md", "train/a/0.txt", "train/a/no_suffix", "other/list.csv"],
        "a picture format that is not read": ["train/a/1.HEIC", "test/b/1.svg"],
        "beside train/, test/ and val/": ["loose.png", "extra/a/0.png", "extra/1.png"],
        "beside the classes": ["train/loose.png"],
        "deeper than <split>/<class>/<image>": ["train/a/masks/0.png", "test/b/c/d/0.jpg"],
    }
    lay_out(tmp_path, kind, files_of() | {name: b"x" for names in extra.values() for name in names})
    source = load(tmp_path)
    assert_same(source, plain)
    expected = [LeftAside(reason, len(names), min(names)) for reason, names in sorted(extra.items())]
    assert source.left_aside == tuple(expected) and source.notes == ()


def test_a_zip_as_macos_makes_it_is_read(tmp_path, plain):
    files = {f"pets/{name}": content for name, content in files_of().items()}
    files |= {f"__MACOSX/pets/{name.replace('/0', '/._0')}": b"x" for name in files_of()} | {"pets/.DS_Store": b"x"}
    lay_out(tmp_path, "zip", files)
    source = load(tmp_path)
    assert_same(source, plain)
    assert source.notes == ("The top folder pets/ was skipped.",)
    assert [(item.reason, item.count) for item in source.left_aside] == [("hidden, or of the operating system", 9)]


def test_masks_beside_their_images_are_read_and_noted(tmp_path):
    lay_out(tmp_path, "zip", files_of("train/a/0_mask.png", "train/b/1_Segmentation.png", "train/b/other_mask.png"))
    source = load(tmp_path)
    assert len(source.images["train"]) == 7
    message = "2 images: named like a mask of another one beside it, but read; e.g. train/a/0_mask.png."
    assert source.notes == (message,)


def test_what_a_folder_cannot_read_is_counted(tmp_path, plain):
    place = lay_out(tmp_path, "folder", files_of() | {"train/a/more/deep.png": b""})
    (place / "train" / "a" / "gone.png").symlink_to("nowhere.png")
    os.mkfifo(place / "train" / "a" / "pipe.png")
    (place / "train" / "a" / "linked").symlink_to(place / "test", target_is_directory=True)
    (place / "train" / "a" / "more" / "linked").symlink_to(place / "test", target_is_directory=True)
    source = load(tmp_path)
    assert_same(source, plain)
    found = {item.reason: (item.count, item.example) for item in source.left_aside}
    assert found == {
        "deeper than <split>/<class>/<image>": (1, "train/a/more/deep.png"),
        "link to nothing": (1, "train/a/gone.png"),
        "no regular file": (1, "train/a/pipe.png"),
        "linked folder not followed": (2, "train/a/linked"),
    }


def test_paths_that_leave_a_zip_are_counted_and_never_written(tmp_path, plain):
    names = ["../own/train/a/9.png", "/tmp/train/a/9.png", "train/a/../../../9.png", "C:\\train\\a\\9.png", "..\\9.png"]
    lay_out(tmp_path / "in", "zip", files_of() | dict.fromkeys(names, picture(0)))
    source = load(tmp_path / "in")
    assert_same(source, plain)
    assert source.left_aside == (LeftAside("its path leaves the zip", 5, min(names)),)
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.png")} == {"plain"}
    assert not Path("/tmp/train/a/9.png").exists()


def test_links_in_a_zip_are_not_followed(tmp_path, plain):
    place = lay_out(tmp_path, "zip", files_of())
    link = zipfile.ZipInfo("train/a/9.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(place, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    source = load(tmp_path)
    assert_same(source, plain)
    assert source.left_aside == (LeftAside("link in a zip", 1, "train/a/9.png"),)


def test_an_entry_for_the_folder_itself_is_nothing(tmp_path, plain):
    lay_out(tmp_path, "zip", {"./": b"", "/": b"", "train/": b"", ".": b"", **files_of()})
    source = load(tmp_path)
    assert_same(source, plain)
    assert source.left_aside == (LeftAside("hidden, or of the operating system", 1, "."),)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_a_name_twice_in_a_zip_the_last_one_counts(tmp_path, plain):
    place = tmp_path / "own.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("train/b/0.png", picture(99))
        for name, content in files_of().items():
            archive.writestr(name, content)
    for _ in range(2):
        source = image_folder(Request("own", "own", tmp_path), place)
        assert_same(source, plain)
    reason = "the same name again in the zip, of which the last one counts"
    assert source.left_aside == (LeftAside(reason, 1, "train/b/0.png"),)


# --- refused ---


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(
    "files, message",
    [
        (files_of() | files_of("Train/a/9.png"), "holds both Train/ and train/; put them into one folder"),
        (files_of(prefix="x/") | files_of(prefix="y/"), "holds splits in x/ and y/; give each data set"),
        (files_of() | {"train/c/notes.txt": b""}, r"train/c holds no image; .* It holds 1 file \(1 .txt\): notes.txt"),
        (files_of("train/c/d/1.png"), r"train/c holds no image; .* It holds 1 file \(1 .png\): d/"),
        (files_of("test/c/1.png"), r"test/ has the class 'c' but train/ has not; both need every class"),
        (files_of(splits=("train", "test", "val")) | files_of("val/c/1.png"), r"val/ has the class 'c' but train/"),
        (files_of("val/a/1.png"), r"train/ has the class 'b' but val/ has not"),
        (files_of(splits=("train", "val")), r"holds no test/<class>/<image>; .* 8 files \(8 .png\): train/, val/\."),
        (
            {f"{label}/{number}.jpg": b"" for label in "abcdefg" for number in range(3)} | {"list.csv": b""},
            r"holds no train/<class>/<image>; .* 22 files \(21 .jpg, 1 .csv\): a/, b/, c/, d/, e/, ...",
        ),
        ({"train.zip": b"", "test.zip": b""}, r"holds no train/.* 2 files \(2 .zip\): test.zip, train.zip"),
    ],
)
def test_a_refusal_says_what_is_there(tmp_path, kind, files, message):
    lay_out(tmp_path, kind, files)
    with pytest.raises(SourceError, match=message):
        load(tmp_path)


def test_an_empty_folder_or_zip_holds_nothing(tmp_path):
    lay_out(tmp_path, "zip", {}, "zipped")
    (tmp_path / "own").mkdir()
    for name in ("own", "zipped"):
        with pytest.raises(SourceError, match="holds no train/.* It holds nothing"):
            load(tmp_path, name)


def test_a_link_to_a_folder_above_is_refused(tmp_path):
    place = lay_out(tmp_path, "folder", files_of())
    (place / "train" / "c").symlink_to(place, target_is_directory=True)
    with pytest.raises(SourceError, match="own: train/c links to a folder that contains it; remove the link"):
        load(tmp_path)


def test_a_class_that_is_a_broken_link_is_named(tmp_path):
    place = lay_out(tmp_path, "folder", files_of("test/c/0.png"))
    (place / "train" / "c").symlink_to("moved")
    with pytest.raises(SourceError, match=r"train/ has not; both need every class \(train/c is a link to nothing\)"):
        load(tmp_path)


def test_an_encrypted_zip_is_refused(tmp_path):
    place = lay_out(tmp_path, "zip", files_of())
    content = bytearray(place.read_bytes())
    for start in (b"PK\3\4", b"PK\1\2"):  # the flags are at 6 in a local header and at 8 in the directory
        position = content.find(start)
        while position >= 0:
            content[position + (6 if start == b"PK\3\4" else 8)] |= 1
            position = content.find(start, position + 4)
    place.write_bytes(content)
    with pytest.raises(SourceError, match=r"own.zip is encrypted \(train/a/0.png\); unpack it with its password"):
        load(tmp_path)


def test_a_huge_file_is_refused_unread(tmp_path):
    place = lay_out(tmp_path, "folder", files_of())
    with open(place / "train" / "b" / "1.png", "wb") as handle:
        handle.truncate(3 * 2**40)  # sparse: no such room is taken
    with pytest.raises(SourceError, match="train/b/1.png has 3298.5 GB, more than an image; remove it"):
        load(tmp_path)


@pytest.mark.parametrize("name", [b"\xff.png", b"c\xff/0.png", b"c\n\xff/0.png"])
def test_names_that_are_no_text_can_be_said(tmp_path, name):
    place = lay_out(tmp_path, "folder", files_of())
    for split in ("train", "test"):
        path = os.path.join(os.fsencode(place / split / "a"), name) if b"/" not in name else None
        path = path or os.path.join(os.fsencode(place / split), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"\\udcff") as caught:
        load(tmp_path)
    str(caught.value).encode("utf-8")
    assert "\n" not in str(caught.value)


def test_an_official_data_set_is_not_hidden_by_a_folder_of_its_name_without_splits(tmp_path):
    (tmp_path / "cifar10" / "notes").mkdir(parents=True)
    lay_out(tmp_path, "zip", files_of(), "cifar10")
    assert load(tmp_path, "cifar10").classes == ("a", "b")
