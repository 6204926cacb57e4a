"""Over random folder trees: every file is in exactly one split of one class or in a count of what was left aside."""

from __future__ import annotations

import io
import tempfile
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from par.streams.folders import image_folder
from par.streams.reading import Request, Source, SourceError

SPLITS = ("train", "test", "val", "Train", "TESTING", "other")
FOLDERS = ("a", "b", "é", unicodedata.normalize("NFD", "é"), ".git", "masks", "__MACOSX", "train")
FILES = ("0.png", "1.PNG", "2.jpg", "0_mask.png", "x.txt", ".hidden.png", "Thumbs.db", "noname", "é.png", "4.heic")
FILES += (unicodedata.normalize("NFD", "é.png"), "b\\c.png")

paths = st.tuples(
    st.sampled_from(("", "", "top/", "more/")),
    st.sampled_from(SPLITS),
    st.lists(st.sampled_from(FOLDERS), max_size=3),
    st.sampled_from(FILES),
).map(lambda parts: parts[0] + "/".join((parts[1], *parts[2], parts[3])))
readable = st.builds(
    lambda top, classes: [f"{top}{split}/{label}/0.png" for split in ("train", "test") for label in classes],
    st.sampled_from(("", "", "top/")),
    st.sampled_from((["a"], ["a", "b"], ["a", "é"])),
)
inside = st.tuples(  # of classes that all readable trees have; the paths above often refuse a tree
    st.sampled_from(("train/a/", "test/a/", "top/train/a/", "")),
    st.sampled_from(("", "", "masks/", ".git/", "b/c/")),
    st.sampled_from(FILES),
).map("".join)
additions = st.lists(inside, max_size=12) | st.lists(inside | paths, max_size=12)
trees = st.builds(lambda base, more: sorted({*base, *more}), readable, additions)


def picture(number: int) -> bytes:
    """The picture of this number: its first pixel is the number."""
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), (number, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write_folder(place: Path, contents: Mapping[str, bytes], order: Sequence[str]) -> Path:
    for name in order:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[name])
    return place


def write_zip(place: Path, contents: Mapping[str, bytes], order: Sequence[str]) -> Path:
    with zipfile.ZipFile(place, "w") as archive:
        for name in order:
            archive.writestr(name, contents[name])
    return place


def read(place: Path) -> Source | str:
    try:
        return image_folder(Request("own", "own", place.parent), place)
    except SourceError as error:
        return str(error).replace(str(place), "PLACE")


def summary(source: Source | str) -> object:
    if isinstance(source, str):
        return source
    arrays = {split: (source.images[split].tolist(), source.labels[split].tolist()) for split in source.images}
    return source.classes, source.digest, arrays, source.left_aside, source.notes


def check(names: Sequence[str], shuffled: Sequence[str]) -> bool:
    """Whether the tree is read; it is checked that nothing is lost, and that form and order make no difference."""
    contents = {name: picture(number) for number, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as root:
        folder = write_folder(Path(root) / "one", contents, names)
        places = [folder, folder, write_folder(Path(root) / "two", contents, shuffled)]
        places += [write_zip(Path(root) / f"{i}.zip", contents, order) for i, order in enumerate((names, shuffled))]
        sources = [read(place) for place in places]
        assert all(summary(source) == summary(sources[0]) for source in sources), list(map(summary, sources))
    source = sources[0]
    if isinstance(source, str):
        assert source.startswith("PLACE") and source.endswith(".") and "\n" not in source
        return False
    seen = Counter(int(image[0, 0, 0]) for images in source.images.values() for image in images)
    assert max(seen.values()) == 1
    assert len(seen) + sum(item.count for item in source.left_aside) == len(names)
    for split, images in source.images.items():
        for image, label in zip(images, source.labels[split]):
            parts = unicodedata.normalize("NFC", names[int(image[0, 0, 0])]).split("/")
            assert parts[-2] == source.classes[label]
            assert parts[-3].lower().startswith({"valid": "val"}.get(split, split))
    assert {item.example for item in source.left_aside} <= {names[i] for i in range(len(names)) if i not in seen}
    return True


def run(count: int) -> int:
    """Check so many trees, the same ones every time; how many of them were read, the others being refused."""
    outcomes = []

    @given(trees, st.randoms(use_true_random=False))
    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    def check_one(names, random):
        outcomes.append(check(names, random.sample(names, len(names))))

    check_one()
    return sum(outcomes)


def test_nothing_is_lost():
    assert run(30) > 5


@pytest.mark.slow
def test_nothing_is_lost_in_many_trees():
    assert run(150) > 30
