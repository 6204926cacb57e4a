"""Data sets as their authors, or torchvision, lay them out in ``data_dir``."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import pickle
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from par.files import sha256_bytes
from par.streams.folders import pictures
from par.streams.reading import SPLITS, Request, Source, SourceError, read_images, walk
from par.streams.transforms import grey_to_rgb


@dataclass(frozen=True)
class Official:
    """A data set as its authors, or torchvision, lay it out in ``data_dir``.

    ``files`` says in words what to put there; ``present(data_dir)`` lists the files and folders that ``read`` would
    read (none: it is not there, or not complete); ``download(root)`` lets torchvision put it there, namely the files
    ``published``, whose MD5 checksums ``read`` verifies.
    """

    files: str
    present: Callable[[Path], Sequence[Path]]
    read: Callable[[Request], Source]
    download: Callable[[Path], None] | None = None
    published: Mapping[str, str] = field(default_factory=dict)


def _check_md5(path: Path, md5: str) -> None:
    with open(path, "rb") as handle:
        found = hashlib.file_digest(handle, "md5").hexdigest()
    if found != md5:
        raise SourceError(f"{path} has the MD5 checksum {found}, its publisher says {md5}; fetch the file again.")


FETCH = "fetch the official file again"


class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickled arrays, lists and mappings and refuses everything else: a pickle can run any program."""

    MODULES = ("numpy", *(f"numpy.{core}.{part}" for core in ("core", "_core") for part in ("multiarray", "numeric")))
    ALLOWED = ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer")

    def find_class(self, module: str, name: str) -> Any:
        if module in self.MODULES and name in self.ALLOWED:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) in (("_codecs", "encode"), ("collections", "OrderedDict"), ("collections", "defaultdict")):
            return super().find_class(module, name)
        if name in ("list", "dict", "int") and module in ("builtins", "__builtin__"):
            return super().find_class("builtins", name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}; only numpy arrays, lists and mappings are admitted")


def _unpickle(content: bytes, where: str, *keys: str) -> list[Any]:
    """The values that the pickled mapping ``content`` has under ``keys`` (texts; written as bytes they count too)."""
    try:
        value = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise SourceError(f"{where} is no readable pickle of arrays ({error}); fetch it again.") from error
    if not isinstance(value, dict):
        raise SourceError(f"{where} holds a {type(value).__name__}, not a mapping with {', '.join(keys)}; {FETCH}.")
    value = {key.decode("latin1") if isinstance(key, bytes) else key: item for key, item in value.items()}
    if missing := [key for key in keys if key not in value]:
        found = ", ".join(map(str, list(value)[:5])) or "nothing"
        raise SourceError(f"{where} has no {missing[0]!r}; it holds {found}; {FETCH}.")
    return [value[key] for key in keys]


def _bytes_array(value: Any, shape: tuple[int | None, ...], where: str) -> np.ndarray:
    """``value``, if it is a uint8 array of ``shape`` (None: any size but 0)."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == len(shape):
        if all(found == asked if asked is not None else found for found, asked in zip(value.shape, shape)):
            return value
    found = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    asked = ", ".join("n" if size is None else str(size) for size in shape)
    raise SourceError(f"{where} is {found}, not uint8 [{asked}]; {FETCH}.")


def _checked_labels(value: Any, n_images: int | None, n_classes: int, where: str) -> np.ndarray:
    """``value`` as int64 ``[n_images]`` (None: any number), every label below ``n_classes``."""
    try:
        labels = np.asarray(value)
    except ValueError:  # lists of unequal lengths
        labels = np.empty(0, object)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise SourceError(f"{where} are no list of integers; {FETCH}.")
    if n_images is not None and len(labels) != n_images:
        raise SourceError(f"{where} are {len(labels)} for {n_images} images; {FETCH}.")
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        found = f"{labels.min()} to {labels.max()}"
        raise SourceError(f"{where} reach from {found}, but must lie in 0 to {n_classes - 1}; {FETCH}.")
    return labels.astype(np.int64)


@dataclass(frozen=True)
class _Cifar:
    """CIFAR's python version: pickled batches in a folder or its ``.tar.gz``."""

    folder: str
    archive: str
    md5: str
    batches: Mapping[str, tuple[str, ...]]
    label_key: str
    meta: str
    names_key: str

    def present(self, data_dir: Path) -> list[Path]:
        if (data_dir / self.archive).exists():
            return [data_dir / self.archive]
        return [data_dir / self.folder] if (data_dir / self.folder).is_dir() else []

    def read(self, request: Request) -> Source:
        place = request.data_dir / self.archive
        if place.exists():
            _check_md5(place, self.md5)
        else:
            place = request.data_dir
        wanted = [f"{self.folder}/{name}" for name in (*self.batches["train"], *self.batches["test"], self.meta)]
        contents = dict(walk(place, wanted))
        (classes,) = _unpickle(contents[f"{self.folder}/{self.meta}"], f"{place}: {self.meta}", self.names_key)
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise SourceError(f"{place}: {self.meta}: {self.names_key!r} is no list of names; {FETCH}.")
        images, labels = {}, {}
        for split, batches in self.batches.items():
            pixels, marks = [], []
            for name in batches:
                where = f"{place}: {name}"
                data, of_batch = _unpickle(contents[f"{self.folder}/{name}"], where, "data", self.label_key)
                pixels.append(_bytes_array(data, (None, 3072), f"{where}: 'data'"))
                marks.append(_checked_labels(of_batch, len(data), len(classes), f"{where}: the {self.label_key}"))
            images[split] = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            labels[split] = np.concatenate(marks)
        digest = sha256_bytes(b"".join(hashlib.sha256(contents[name]).digest() for name in wanted))
        return Source(request.dataset, tuple(classes), images, labels, digest)


_CIFAR10 = _Cifar(
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    "labels",
    "batches.meta",
    "label_names",
)
_CIFAR100 = _Cifar(
    "cifar-100-python",
    "cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    {"train": ("train",), "test": ("test",)},
    "fine_labels",
    "meta",
    "fine_label_names",
)


@dataclass(frozen=True)
class _Idx:
    """The MNIST family: four idx files in ``<folder>/raw``, compressed (then their checksum is verified) or not."""

    folder: str
    md5: Mapping[str, str]
    classes: tuple[str, ...]

    def published(self) -> dict[str, str]:
        return {f"{name}.gz": md5 for name, md5 in self.md5.items()}

    def _file(self, data_dir: Path, name: str) -> Path | None:
        raw = data_dir / self.folder / "raw"
        return next((path for path in (raw / f"{name}.gz", raw / name) if path.exists()), None)

    def present(self, data_dir: Path) -> list[Path]:
        paths = [path for name in self.md5 if (path := self._file(data_dir, name)) is not None]
        return paths if len(paths) == len(self.md5) else []

    def read(self, request: Request) -> Source:
        images, labels, digest = {}, {}, hashlib.sha256()
        for split, prefix in zip(SPLITS, ("train", "t10k")):
            arrays = []
            for name, shape in (("images-idx3-ubyte", (None, 28, 28)), ("labels-idx1-ubyte", (None,))):
                path = self._file(request.data_dir, f"{prefix}-{name}")
                assert path is not None  # `present` has looked
                content = self._content(path, self.md5[f"{prefix}-{name}"])
                digest.update(hashlib.sha256(content).digest())
                arrays.append(_bytes_array(_parse_idx(content, path), shape, f"{path}"))
            images[split] = grey_to_rgb(arrays[0])
            labels[split] = _checked_labels(arrays[1], len(arrays[0]), len(self.classes), f"{path}: the labels")
        return Source(request.dataset, self.classes, images, labels, digest.hexdigest())

    def _content(self, path: Path, md5: str) -> bytes:
        """What a file holds, unpacked; compressed files are known by their name or their first bytes."""
        if path.is_dir():
            raise SourceError(f"{path} is a folder; put the idx file itself in its place.")
        try:
            content = path.read_bytes()
            if path.suffix == ".gz" or content[:2] == b"\x1f\x8b":
                _check_md5(path, md5)
                content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise SourceError(f"{path} cannot be read ({error}); copy or fetch it again.") from error
        return content


def _parse_idx(content: bytes, path: Path) -> np.ndarray:
    """An idx file of bytes: a magic number 0, 0, 8, rank, then the sizes as big-endian 32-bit numbers."""
    try:
        if content[:3] != b"\0\0\x08" or len(content) < 4:
            raise ValueError("wrong magic number")
        shape = np.frombuffer(content, ">u4", content[3], offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + shape.nbytes).reshape(shape.tolist())
    except ValueError as error:
        raise SourceError(f"{path} is no complete idx file of bytes ({error}); fetch it again.") from error


_MNIST = _Idx(
    "MNIST",
    {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    tuple(str(digit) for digit in range(10)),
)
_FASHION = _Idx(
    "FashionMNIST",
    {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

SVHN_MD5 = {"train": "e26dedcc434d2e4c54c9b2d4a06d8373", "test": "eb5a983be6a315427106f1b164d9cef3"}


def _svhn_present(data_dir: Path) -> list[Path]:
    paths = [data_dir / f"{split}_32x32.mat" for split in SPLITS]
    return paths if all(path.exists() for path in paths) else []


def _svhn(request: Request) -> Source:
    """SVHN's cropped digits: ``{train,test}_32x32.mat``; the digit 0 carries label 10 there."""
    from scipy.io import loadmat

    images, labels, digest = {}, {}, hashlib.sha256()
    for split in SPLITS:
        path = request.data_dir / f"{split}_32x32.mat"
        _check_md5(path, SVHN_MD5[split])
        content = path.read_bytes()
        digest.update(hashlib.sha256(content).digest())
        arrays = loadmat(io.BytesIO(content))
        images[split] = np.ascontiguousarray(arrays["X"].transpose(3, 0, 1, 2))
        labels[split] = arrays["y"].astype(np.int64).ravel() % 10
    return Source(request.dataset, tuple(str(digit) for digit in range(10)), images, labels, digest.hexdigest())


DTD_MD5 = "fff73e5086ae6bdbea199a49dfb8a4c1"


def _dtd_place(data_dir: Path) -> tuple[Path, str] | None:
    """Where DTD lies and the prefix of its names: the archive, torchvision's folder or the unpacked archive."""
    for archive in (data_dir / "dtd-r1.0.1.tar.gz", data_dir / "dtd" / "dtd-r1.0.1.tar.gz"):
        if archive.exists():
            return archive, "dtd/"
    for folder in (data_dir / "dtd" / "dtd", data_dir / "dtd"):
        if (folder / "labels").is_dir():
            return folder, ""
    return None


def _dtd_present(data_dir: Path) -> list[Path]:
    found = _dtd_place(data_dir)
    return [] if found is None else [found[0]]


def _dtd(request: Request) -> Source:
    """DTD, official split 1: its train and val lists are for training (80 images a class), its test list has 40."""
    found = _dtd_place(request.data_dir)
    assert found is not None  # `present` has looked
    place, prefix = found
    if place.is_file():
        _check_md5(place, DTD_MD5)
    split_of = {"train": "train", "val": "train", "test": "test"}
    lists = {f"{prefix}labels/{part}1.txt": split for part, split in split_of.items()}
    members: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name, content in sorted(walk(place, lists)):
        members[lists[name]] += _text(content, f"{place}: {name}").split()
    _refuse_repeated([*members["train"], *members["test"]], f"{place}: the lists of split 1")
    classes = tuple(sorted({name.split("/")[0] for name in members["train"]}))
    if unknown := sorted({name.split("/")[0] for name in members["test"]} ^ set(classes)):
        raise SourceError(f"{place}: the lists of split 1 have {unknown[0]!r} for training or testing alone; {FETCH}.")
    digest = hashlib.sha256()
    names = {split: sorted(members[split]) for split in SPLITS}
    paths = [f"{prefix}images/{name}" for split in SPLITS for name in names[split]]
    pixels, notes = read_images(place, paths, request, digest)
    images = dict(zip(SPLITS, np.split(pixels, [len(names["train"])])))
    labels = {split: np.array([classes.index(name.split("/")[0]) for name in names[split]]) for split in SPLITS}
    return Source(request.dataset, classes, images, labels, digest.hexdigest(), notes=notes)


GTSRB_MD5 = {
    "GTSRB-Training_fixed.zip": "513f3c79a4c5141765e10e952eaa2478",
    "GTSRB_Final_Test_Images.zip": "c7e4e6327067d32654124b0fe9e82185",
    "GTSRB_Final_Test_GT.zip": "fe31e9c9270bbcd7b84b7f21a9d9d9e5",
}
GTSRB_PARTS = ("GTSRB/Training", "GTSRB/Final_Test/Images", "GT-final_test.csv")  # what the three archives hold


def _gtsrb_places(data_dir: Path) -> list[Path]:
    """The three archives, in ``data_dir`` or in torchvision's folder, or that folder where they are unpacked."""
    folder, places = data_dir / "gtsrb", []
    for archive, part in zip(GTSRB_MD5, GTSRB_PARTS):
        packed = [path for path in (data_dir / archive, folder / archive) if path.exists()]
        places += packed[:1] or ([folder] if (folder / part).exists() else [])
    return places if len(places) == len(GTSRB_PARTS) else []


def _gtsrb_present(data_dir: Path) -> list[Path]:
    return [place / part if place.is_dir() else place for place, part in zip(_gtsrb_places(data_dir), GTSRB_PARTS)]


def _gtsrb(request: Request) -> Source:
    """GTSRB: 43 classes of traffic signs, 00000 to 00042. Images are of unlike sizes; no sign is in both splits."""
    places = _gtsrb_places(request.data_dir)
    for place in places:
        if place.is_file():
            _check_md5(place, GTSRB_MD5[place.name])
    files: dict[str, list[str]] = {}
    for split, place, part in zip(SPLITS, places, GTSRB_PARTS):
        files[split] = [name for name in pictures(place)[0] if name.startswith(f"{part}/")]
    ((_, content),) = walk(places[2], [GTSRB_PARTS[2]])
    rows = csv.DictReader(io.StringIO(_text(content, f"{places[2]}: {GTSRB_PARTS[2]}"), newline=""), delimiter=";")
    class_of = {f"{GTSRB_PARTS[1]}/{row.get('Filename')}": f"{row.get('ClassId') or '':0>5}" for row in rows}
    if unknown := [name for name in files["test"] if name not in class_of]:
        raise SourceError(f"{places[2]}: {GTSRB_PARTS[2]} lacks {unknown[0]}; {FETCH}.")
    class_of |= {name: name.split("/")[-2] for name in files["train"]}
    classes = tuple(sorted({class_of[name] for name in files["train"]}))
    if strange := sorted({class_of[name] for name in files["test"]} - set(classes)):
        raise SourceError(f"{places[2]}: the class {strange[0]} of a test image has no training image; {FETCH}.")
    digest, images, labels = hashlib.sha256(), {}, {}
    notes: tuple[str, ...] = ()
    for split, place in zip(SPLITS, places):
        images[split], remarks = read_images(place, files[split], request, digest)
        labels[split] = np.array([classes.index(class_of[name]) for name in files[split]])
        notes += remarks
    digest.update(json.dumps(labels["train"].tolist() + labels["test"].tolist()).encode())
    return Source(request.dataset, classes, images, labels, digest.hexdigest(), notes=notes)


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{where} is no UTF-8 text ({error}); {FETCH}.") from error


def _refuse_repeated(names: Sequence[str], where: str) -> None:
    """What stands twice in a list could be learned and tested."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise SourceError(f"{where} name {repeated[0]} more than once; remove the repeated lines.")


MINIIMAGENET_PARTS = ("train", "val", "test")  # of classes, not of images: 64, 16 and 20 classes of 600 images
MINIIMAGENET_TEST = 60  # the last so many images of a class are for testing (sources.md#miniimagenet)


def _miniimagenet_pickles(data_dir: Path) -> list[Path]:
    for folder in (data_dir / "miniimagenet", data_dir):
        paths = [folder / f"mini-imagenet-cache-{part}.pkl" for part in MINIIMAGENET_PARTS]
        if all(path.exists() for path in paths):
            return paths
    return []


def _miniimagenet_lists(data_dir: Path) -> list[Path]:
    folder = data_dir / "miniimagenet"
    paths = [folder / f"{part}.csv" for part in MINIIMAGENET_PARTS]
    return paths if all(path.exists() for path in paths) and (folder / "images").is_dir() else []


def _miniimagenet_present(data_dir: Path) -> list[Path]:
    lists = _miniimagenet_lists(data_dir)
    return _miniimagenet_pickles(data_dir) or ([*lists, lists[0].parent / "images"] if lists else [])


def _miniimagenet(request: Request) -> Source:
    """miniImageNet from its three pickles, or from ``images/*.jpg`` with ``{train,val,test}.csv`` (filename,label)."""
    digest = hashlib.sha256()
    notes: tuple[str, ...] = ()
    if paths := _miniimagenet_pickles(request.data_dir):
        by_class = _pickled_classes(paths, digest)
    else:
        paths = _miniimagenet_lists(request.data_dir)
        files = _listed_classes(paths)
        names = [name for members in files.values() for name in members]
        pixels, notes = read_images(paths[0].parent / "images", names, request, digest)
        starts = np.cumsum([len(members) for members in files.values()])[:-1]
        by_class = dict(zip(files, np.split(pixels, starts)))
    if small := [name for name, pixels in by_class.items() if len(pixels) <= MINIIMAGENET_TEST]:
        raise SourceError(
            f"{paths[0].parent}: class {small[0]} has {len(by_class[small[0]])} images, but the last "
            f"{MINIIMAGENET_TEST} are for testing and some must be left for training; {FETCH}."
        )
    images, labels = {}, {}
    for split, part in (("train", slice(None, -MINIIMAGENET_TEST)), ("test", slice(-MINIIMAGENET_TEST, None))):
        images[split] = np.concatenate([pixels[part] for pixels in by_class.values()])
        labels[split] = np.repeat(np.arange(len(by_class)), [len(pixels[part]) for pixels in by_class.values()])
    return Source(request.dataset, tuple(by_class), images, labels, digest.hexdigest(), notes=notes)


def _pickled_classes(paths: Sequence[Path], digest: hashlib._Hash) -> dict[str, np.ndarray]:
    """Images uint8 ``[n, H, W, 3]`` by class; the pickles' bytes go into ``digest``."""
    by_class: dict[str, np.ndarray] = {}
    shape: tuple[int | None, ...] = (None, None, None, 3)
    for path in paths:
        _, content = next(iter(walk(path.parent, [path.name])))
        digest.update(hashlib.sha256(content).digest())
        pixels, classes = _unpickle(content, str(path), "image_data", "class_dict")
        pixels = _bytes_array(pixels, shape, f"{path}: 'image_data'")
        shape = (None, *pixels.shape[1:])  # of the first pickle, asked of the others
        if not isinstance(classes, dict):
            raise SourceError(f"{path}: 'class_dict' is no mapping of classes to rows; {FETCH}.")
        taken: list[str] = []
        for name, rows in classes.items():
            if name in by_class:
                raise SourceError(f"{path}: class {name} is in another pickle too; {FETCH}.")
            rows = _checked_labels(rows, None, len(pixels), f"{path}: the rows of class {name}")
            by_class[name] = pixels[rows]
            taken += map(str, rows)
        _refuse_repeated(taken, f"{path}: the classes' rows")
    return by_class


def _listed_classes(paths: Sequence[Path]) -> dict[str, list[str]]:
    """Names of image files by class, from lists with the columns filename and label."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        _, content = next(iter(walk(path.parent, [path.name])))
        for line in csv.DictReader(io.StringIO(_text(content, str(path)), newline="")):
            if not line.get("filename") or not line.get("label"):
                raise SourceError(f"{path} has a line without filename or label; {FETCH}.")
            files[line["label"]].append(line["filename"])
    _refuse_repeated([name for members in files.values() for name in members], f"the lists in {paths[0].parent}")
    return files


FCELEBA_USERS = 10  # the first ones, their numbers sorted as texts: 0 1 10 11 12 ... (sources.md#mixed)
FCELEBA_ATTRIBUTE = "Smiling"


def _celeba_images(folder: Path) -> Path | None:
    return next((p for p in (folder / "img_align_celeba", folder / "img_align_celeba.zip") if p.exists()), None)


def _fceleba_present(data_dir: Path) -> list[Path]:
    folder = data_dir / "celeba"
    lists, attributes, images = folder / "leaf", folder / "list_attr_celeba.txt", _celeba_images(folder)
    complete = all(any((lists / split).glob("*.json")) for split in SPLITS) and attributes.exists()
    return [lists, attributes, images] if complete and images is not None else []


def _fceleba(request: Request) -> Source:
    """F-CelebA: the images of ten LEAF users, two classes a user (``<user>-neutral``, ``<user>-smiling``).

    LEAF's lists say which images a user has, CelebA's attribute file says who smiles. Images are resized to the
    square ``request.size`` without keeping their aspect ratio, as CAT and PAR do.
    """
    folder = request.data_dir / "celeba"
    smiles = _celeba_attribute(folder / "list_attr_celeba.txt", FCELEBA_ATTRIBUTE)
    place = _celeba_images(folder)
    assert place is not None  # `present` has looked
    prefix = "img_align_celeba/" if place.suffix == ".zip" else ""
    files = {split: _leaf_users(folder / "leaf" / split) for split in SPLITS}
    users = sorted(files["train"])[:FCELEBA_USERS]
    if missing := [user for user in users if user not in files["test"]]:
        raise SourceError(f"{folder}/leaf/test lacks the user {missing[0]}; {FETCH}.")
    listed = [name for split in SPLITS for user in users for name in files[split][user]]
    _refuse_repeated(listed, f"the lists in {folder}/leaf")
    classes = tuple(f"{user}-{mood}" for user in users for mood in ("neutral", "smiling"))
    digest, images, labels = hashlib.sha256(), {}, {}
    notes: tuple[str, ...] = ()
    for split in SPLITS:
        if unknown := [name for user in users for name in files[split][user] if name not in smiles]:
            raise SourceError(f"{folder}/list_attr_celeba.txt lacks {unknown[0]}; fetch CelebA's file again.")
        members = [(2 * rank + smiles[name], name) for rank, user in enumerate(users) for name in files[split][user]]
        names = [prefix + name for _, name in members]
        images[split], remarks = read_images(place, names, request, digest, squash=True)
        notes += remarks
        labels[split] = np.array([label for label, _ in members])
    digest.update(json.dumps(labels["train"].tolist() + labels["test"].tolist()).encode())
    squashed = request.size is not None
    return Source(request.dataset, classes, images, labels, digest.hexdigest(), notes=notes, squashed=squashed)


def _leaf_users(folder: Path) -> dict[str, list[str]]:
    """Names of image files by user, from LEAF's JSON files."""
    users: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            users.update({user: list(map(str, data["x"])) for user, data in content["user_data"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"{path} is no list of LEAF ({type(error).__name__}: {error}); {FETCH}.") from error
    return users


def _celeba_attribute(path: Path, column: str) -> dict[str, bool]:
    """Which images of CelebA have an attribute. The file: a count, the column names, one image a line with -1 or 1."""
    (_, content), *_ = walk(path.parent, [path.name])
    lines = _text(content, str(path)).splitlines()
    columns = lines[1].split() if len(lines) > 1 else []
    if column not in columns:
        raise SourceError(
            f"{path} has no column {column!r}, its columns are {' '.join(columns[:5]) or 'none'} ...; "
            "fetch CelebA's list_attr_celeba.txt again."
        )
    position = columns.index(column) + 1
    rows = [line.split() for line in lines[2:]]
    if short := [number for number, fields in enumerate(rows, 3) if len(fields) <= position]:
        raise SourceError(f"{path} has too few columns in line {short[0]}; fetch CelebA's list_attr_celeba.txt again.")
    return {fields[0]: fields[position] == "1" for fields in rows}


def _from_torchvision(name: str, **splits: Sequence[object]) -> Callable[[Path], None]:
    """A download by the torchvision data set ``name``, once for each value of its split argument."""

    def download(root: Path) -> None:
        from torchvision import datasets

        for argument, values in splits.items():
            for value in values:
                getattr(datasets, name)(root, download=True, **{argument: value})

    return download


OFFICIAL: dict[str, Official] = {
    "cifar10": Official(
        _CIFAR10.archive,
        _CIFAR10.present,
        _CIFAR10.read,
        _from_torchvision("CIFAR10", train=(True,)),
        {_CIFAR10.archive: _CIFAR10.md5},
    ),
    "cifar100": Official(
        _CIFAR100.archive,
        _CIFAR100.present,
        _CIFAR100.read,
        _from_torchvision("CIFAR100", train=(True,)),
        {_CIFAR100.archive: _CIFAR100.md5},
    ),
    "mnist": Official(
        f"MNIST/raw/ with {', '.join(_MNIST.md5)} (or .gz)",
        _MNIST.present,
        _MNIST.read,
        _from_torchvision("MNIST", train=(True,)),
        _MNIST.published(),
    ),
    "fashionmnist": Official(
        f"FashionMNIST/raw/ with {', '.join(_FASHION.md5)} (or .gz)",
        _FASHION.present,
        _FASHION.read,
        _from_torchvision("FashionMNIST", train=(True,)),
        _FASHION.published(),
    ),
    "svhn": Official(
        "train_32x32.mat and test_32x32.mat",
        _svhn_present,
        _svhn,
        _from_torchvision("SVHN", split=SPLITS),
        {f"{split}_32x32.mat": md5 for split, md5 in SVHN_MD5.items()},
    ),
    "dtd": Official(
        "dtd-r1.0.1.tar.gz",
        _dtd_present,
        _dtd,
        _from_torchvision("DTD", split=("train",)),
        {"dtd-r1.0.1.tar.gz": DTD_MD5},
    ),
    "gtsrb": Official(
        f"{', '.join(GTSRB_MD5)}",
        _gtsrb_present,
        _gtsrb,
        _from_torchvision("GTSRB", split=SPLITS),
        GTSRB_MD5,
    ),
    "miniimagenet": Official(
        "miniimagenet/ with mini-imagenet-cache-{train,val,test}.pkl or with images/*.jpg and {train,val,test}.csv",
        _miniimagenet_present,
        _miniimagenet,
    ),
    "fceleba": Official(
        "celeba/ with img_align_celeba/ or .zip, list_attr_celeba.txt and LEAF's leaf/train/*.json, leaf/test/*.json",
        _fceleba_present,
        _fceleba,
    ),
}


@dataclass(frozen=True)
class StandIn:
    """A part of a data set: of each of ``classes`` (none: all) the first ``train`` and ``test`` images of its splits.

    ``size``: pixels of a side (None: as they are).
    """

    dataset: str
    train: int
    test: int
    size: int | None = None
    classes: tuple[str, ...] = ()


# What streams name as `file`, by that name; `python -m par.streams.stand_ins` makes it.
STAND_INS: dict[str, StandIn] = {
    "gtsrb-ten": StandIn(
        "gtsrb",
        train=600,
        test=100,
        size=32,
        classes=("00001", "00002", "00004", "00005", "00009", "00010", "00012", "00013", "00025", "00038"),
    ),
    "dtd-ten": StandIn(
        "dtd",
        train=80,
        test=40,
        size=64,
        classes=("banded", "blotchy", "braided", "bubbly", "bumpy", "chequered", "cobwebbed", "cracked", "crosshatched",
                 "crystalline"),
    ),
    "miniimagenet-small": StandIn("miniimagenet", train=36, test=6),
}  # fmt: skip
