"""Asked about images that no stream has seen, PAR decides as a person would expect."""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

from par.config import DistanceSettings, ExtractorSettings, Routing
from par.relatedness.distance import distance_matrix
from par.relatedness.extractor import Extractor, extract_stream, load_extractor
from par.relatedness.prototypes import Prototypes, class_prototypes
from par.relatedness.routing import route
from par.schema import parse
from par.streams import Stream, build_stream
from par.streams.definition import Definition
from par.streams.stream import build_definition
from par.use.forecast import Forecast, build_task, forecast

Picture = Image.Image
VEHICLES = ("bicycle", "bus", "motorcycle", "pickup_truck", "train")
FLOWERS = ("orchid", "poppy", "rose", "sunflower", "tulip")
TRAIN, VALID = 40, 50  # images a class
PAPER = Routing(alpha=0.5, beta=0.75, freeze_below=0.1, distance=DistanceSettings())


def same(picture: Picture) -> Picture:
    return picture


def blurred(picture: Picture) -> Picture:
    return picture.filter(ImageFilter.GaussianBlur(1))


def sketched(picture: Picture) -> Picture:
    return ImageOps.grayscale(picture).filter(ImageFilter.FIND_EDGES)


@functools.cache
def extractor(pixels: int) -> Extractor:
    return load_extractor(ExtractorSettings("efficientnet_lite0", image_size=pixels))


@functools.cache
def members(archive: Path, split: str) -> dict[str, list[str]]:
    """Names of the images of an archive by class."""
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in sorted(opened.namelist()) if name.startswith(f"{split}/") and name[-1] != "/"]
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.split("/")[1], []).append(name)
    return found


def data_set(
    folder: Path,
    archive: Path,
    classes: Sequence[str] | int,
    first: int = 0,
    change: Callable[[Picture], Picture] = same,
) -> Path:
    """An image folder of some classes (their names, or so many), each with images of the archive from ``first`` on."""
    of_class = members(archive, "train")
    with zipfile.ZipFile(archive) as opened:
        for label in list(of_class)[:classes] if isinstance(classes, int) else classes:
            wanted = of_class[label][first : first + TRAIN + VALID + 2]
            for number, name in enumerate(wanted):
                place = folder / ("train" if number < TRAIN + VALID else "test") / label
                place.mkdir(parents=True, exist_ok=True)
                picture = Image.open(BytesIO(opened.read(name))).convert("RGB")
                change(picture).save(place / f"{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def known(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """A stream of CIFAR100's vehicles and flowers and of MNIST's first five digits."""
    folder = tmp_path_factory.mktemp("known")
    data_set(folder / "vehicles", real_data / "cifar100.zip", VEHICLES)
    data_set(folder / "flowers", real_data / "cifar100.zip", FLOWERS)
    data_set(folder / "numbers", real_data / "mnist.zip", 5)
    names = ("vehicles", "flowers", "numbers")
    raw = {
        "image_size": 32,
        "sources": {name: {"resize": True} for name in names},
        "tasks": [{"source": name, "train": TRAIN, "valid": VALID} for name in names],
    }
    return build_definition("known", 0, parse(Definition, raw), raw, folder, folder / "built")


@pytest.fixture(scope="module")
def ask(known: Stream, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Forecast]:
    """What PAR would do with an image folder after the stream."""
    features = valid_features(known, 64)

    def answer(place: Path) -> Forecast:
        new = build_task(known, place, tmp_path_factory.mktemp("built") / "new", valid=VALID)
        return after(known, new, features, 64)

    return answer


def valid_features(stream: Stream, pixels: int) -> dict[str, np.ndarray]:
    found = extract_stream(stream, extractor(pixels), ["valid"])
    return {name.replace("/valid", ""): array for name, array in found.items()}


def prototypes_of(stream: Stream, features: dict[str, np.ndarray]) -> list[Prototypes]:
    arrays = [(task, *(features[f"{task.index}/{kind}"] for kind in ("features", "labels"))) for task in stream.tasks]
    return [class_prototypes(of_task, labels, task.n_classes) for task, of_task, labels in arrays]


def after(stream: Stream, new: Stream, features: dict[str, np.ndarray], pixels: int) -> Forecast:
    return forecast(stream, new, PAPER, features, prototypes_of(stream, features), extractor(pixels))


@pytest.mark.slow
@pytest.mark.parametrize(
    "archive, classes, first, change, decisions, nearest",
    [
        # the same tasks with images that the stream has not
        ("cifar100", VEHICLES, 150, same, {"join"}, "vehicles"),
        ("mnist", 5, 150, same, {"join"}, "numbers"),
        # the same classes in another domain
        ("cifar100", VEHICLES, 150, ImageOps.invert, {"join"}, "vehicles"),
        ("cifar100", VEHICLES, 150, blurred, {"join", "reuse_cell"}, "vehicles"),
        ("cifar100", VEHICLES, 150, ImageOps.grayscale, {"join", "reuse_cell"}, "vehicles"),
        ("cifar100", VEHICLES, 150, sketched, {"search"}, None),
        # other tasks
        ("gtsrb-ten", 5, 0, same, {"search"}, None),
        ("fashionmnist", 5, 0, same, {"search"}, None),
    ],
    ids=["repeated", "digits again", "inverted", "blurred", "grey", "sketched", "signs", "clothes"],
)
def test_what_is_the_same_joins_and_what_is_foreign_is_searched(
    archive, classes, first, change, decisions, nearest, ask, real_data, tmp_path
):
    found = ask(data_set(tmp_path / "new", real_data / f"{archive}.zip", classes, first, change))
    assert found.new.decision in decisions
    assert nearest in (None, ("vehicles", "flowers", "numbers")[found.nearest_task])


EXHAUSTIVE = ("demo_plus", "demo_out", "demo_pl", "demo_mixed", "demo_split")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["demo_minus", "demo_in", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in EXHAUSTIVE)],
)
def test_the_last_task_of_a_demo_stream_is_forecast_as_it_is_planned(name, tmp_path):
    stream = build_stream(name, 0, tmp_path, tmp_path / "stream")
    features = valid_features(stream, 48)
    arrays = [[features[f"{task.index}/{kind}"] for task in stream.tasks] for kind in ("features", "labels")]
    planned = route(
        distance_matrix("paper", *arrays, prototypes_of(stream, features)),
        [task.counts["train"] for task in stream.tasks],
        [task.name for task in stream.tasks],
        alpha=PAPER.alpha,
        beta=PAPER.beta,
        freeze_below=PAPER.freeze_below,
        estimator="paper",
    )
    earlier, last = (replace(stream, tasks=tasks) for tasks in (stream.tasks[:-1], stream.tasks[-1:]))
    found = after(earlier, last, features, 48)
    assert [*found.decisions, found.new] == planned
    if name in ("demo_minus", "demo_plus"):
        assert found.new.decision == "join" and found.new.group == planned[0].group
