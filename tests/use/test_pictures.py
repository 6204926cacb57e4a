"""Files as a stream reads them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from par.schema import parse
from par.streams import SourceError
from par.streams.definition import Definition
from par.streams.pixels import Target
from par.streams.stream import build_definition
from par.streams.transforms import resize
from par.use.pictures import PictureReader, differences
from tests.streams.test_sources import write_celeba


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_an_image_is_resized_as_in_building_a_stream(resample, tmp_path):
    Image.fromarray(noise(40, 30)).save(tmp_path / "a.png")
    ((name, image),) = PictureReader((16, 16), Target(16, resample)).read([tmp_path / "a.png"])
    assert name == str(tmp_path / "a.png") and image.dtype == np.uint8
    assert np.array_equal(image.transpose(1, 2, 0), resize(noise(40, 30)[None], 16, resample)[0])


def test_files_get_the_pixels_of_the_stream_whichever_reader_made_it(tmp_path):
    """F-CelebA's reader squashes; an image folder is cropped, by the filter that its use in the stream names."""
    write_celeba(tmp_path)
    for split in ("train", "test"):
        for label in ("a", "b"):
            (tmp_path / "pets" / split / label).mkdir(parents=True)
            for number in range(3):
                Image.fromarray(noise(40 + number, 30)).save(tmp_path / "pets" / split / label / f"{number}.png")
    raw = {
        "image_size": 16,
        "sources": {
            "fceleba": {"resize": True},
            "pets": {"resize": True},
            "smooth": {"dataset": "pets", "resize": True, "resample": "bicubic"},
        },
        "tasks": [
            {"source": "fceleba", "classes": ["0-neutral", "1-neutral"], "train": 1, "valid": 1},
            {"source": "pets", "valid": 1},
            {"source": "smooth", "valid": 1},
        ],
    }
    tasks = build_definition("three", 0, parse(Definition, raw), raw, tmp_path, tmp_path / "built").tasks
    assert [str(task.target).partition(" ")[0] for task in tasks] == ["bilinear,", "bilinear,", "bicubic,"]
    for task, files in ((tasks[0], "celeba/img_align_celeba"), (tasks[1], "pets/test/a"), (tasks[2], "pets/test/a")):
        found = {image.tobytes() for _, image in PictureReader((16, 16), task.target).read([tmp_path / files])}
        first = [image.tobytes() for image in task.split("test").images[:1]]
        assert found.issuperset(first)
    assert len(differences(tasks)) == 1 and differences(tasks[:1]) == []


def test_folders_are_read_at_any_depth_and_what_is_no_image_is_counted(tmp_path):
    for name in ("x/y/z/deep.png", "top.bmp", "x/.hidden.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(8, 8)).save(tmp_path / name)
    (tmp_path / "x/readme.md").write_text("words")
    reader = PictureReader((8, 8), Target(8))
    found = [name for name, _ in reader.read([tmp_path])]
    assert found == [f"{tmp_path}/top.bmp", f"{tmp_path}/x/y/z/deep.png"]
    assert {(one.reason, one.count) for one in reader.left_aside} == {
        ("not an image", 1),
        ("hidden, or of the operating system", 1),
    }
    assert any("1 file: not read, not an image; e.g. x/readme.md." in note for note in reader.notes())


def test_unreadable_images_are_grouped_by_reason(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"words")
    reader = PictureReader((8, 8), Target(8))
    assert list(reader.read([tmp_path])) == []
    assert reader.notes() == [
        f"3 files could not be read: {tmp_path}/0.png is no image that Pillow reads; replace or remove that file."
    ]


def test_a_stream_of_oblong_images_takes_no_other_size(tmp_path):
    reader = PictureReader((8, 12), Target())
    for name, shape in (("fits", (8, 12)), ("turned", (12, 8))):
        Image.fromarray(noise(*shape)).save(tmp_path / f"{name}.png")
    assert [name for name, _ in reader.read([tmp_path])] == [f"{tmp_path}/fits.png"]
    assert "has 8x12 pixels, the images of the stream have 12x8; crop it" in reader.notes()[0]


def test_floats_of_two_ranges_are_refused_as_a_whole(tmp_path):
    for name, scale in (("small", 1.0), ("large", 200.0)):
        Image.fromarray(np.full((8, 8), scale, np.float32)).save(tmp_path / f"{name}.tif")
    reader = PictureReader((8, 8), Target(8))
    assert len(list(reader.read([tmp_path]))) == 2
    with pytest.raises(SourceError, match="scale all of them alike"):
        reader.notes()


def test_places_that_hold_nothing_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="holds no image that can be read; it holds nothing"):
        list(PictureReader((8, 8), Target(8)).read([tmp_path / "empty"]))
    with pytest.raises(SourceError, match="does not exist"):
        list(PictureReader((8, 8), Target(8)).read([tmp_path / "missing"]))
