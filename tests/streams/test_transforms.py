"""Pure image and label transforms."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from par.streams import transforms


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 250, (5, 12, 12, 3), dtype=np.uint8)


def test_grey_is_copied_into_three_channels(images):
    rgb = transforms.grey_to_rgb(images[..., 0])
    assert rgb.shape == images.shape and rgb.dtype == np.uint8
    for channel in range(3):
        np.testing.assert_array_equal(rgb[..., channel], images[..., 0])


@pytest.mark.parametrize("colour, constant", [("red", 0), ("green", 1), ("blue", 2)])
def test_background_follows_the_formula_of_ctrl(images, colour, constant):
    grey = transforms.grey_to_rgb(images[..., 0])
    before = grey.copy()
    coloured = transforms.colour_background(grey, colour)
    share = np.array(transforms.PALETTE[colour]) / 255
    np.testing.assert_array_equal(coloured, grey + (grey.max() - grey) * share)
    assert (coloured[..., constant] == grey.max()).all()
    np.testing.assert_array_equal(grey, before)


def test_rotated_labels_take_the_class_of_the_label_before():
    assert transforms.rotate(("a", "b", "c", "d")) == ("d", "a", "b", "c")


def test_resize_keeps_images_of_the_right_size_and_enlarges_grey_to_grey(images):
    assert transforms.resize(images, 12) is images
    enlarged = transforms.resize(transforms.grey_to_rgb(images[..., 0]), 32)
    assert enlarged.shape == (5, 32, 32, 3)
    assert (enlarged == enlarged[..., :1]).all()


def test_fit_scales_the_shorter_side_and_crops_the_centre():
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 200
    fitted = np.asarray(transforms.fit(Image.fromarray(wide), 10))
    assert fitted.shape == (10, 10, 3)
    assert (fitted[:, 1:-1] == 200).all()


def test_flip_and_crop_yields_shifted_and_mirrored_images(images):
    cropped = transforms.flip_and_crop(np.repeat(images[:1], 200, axis=0), np.random.default_rng(1), pad=2)
    framed = {}
    for mirrored in (False, True):
        padded = np.pad(images[0][:, ::-1] if mirrored else images[0], ((2, 2), (2, 2), (0, 0)))
        for top in range(5):
            for left in range(5):
                framed[padded[top : top + 12, left : left + 12].tobytes()] = (mirrored, top, left)
    seen = {framed[image.tobytes()] for image in cropped}
    assert len(seen) > 40, "of 50 possible results"
