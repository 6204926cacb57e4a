"""One image file as 8-bit RGB: one rule per Pillow mode, and what had to be interpreted is counted.

``docs/images.md`` holds the rules as a table for users.
"""

from __future__ import annotations

import io
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from par.streams.transforms import FILTERS, fit

BACKGROUND = "white"  # shows through where an image is transparent
MAX_PIXELS = 64_000_000  # of one image, as stored and as resized: 192 MB as RGB
MAX_ASPECT = 32  # a longer strip grows without bound when its shorter side is resized, and loses all but its centre
# registered by Pillow, but documents, videos, vectors or measurements; Pillow runs Ghostscript for EPS
NOT_PICTURES = {"BUFR", "EPS", "FITS", "FLI", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}
COMMON = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # tried first
ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
EXIF_KEYS = {"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"}  # where Pillow looks for an orientation
BITS_PER_SAMPLE, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF

Image.init()
PICTURES = set(Image.registered_extensions().values()) - NOT_PICTURES
FORMATS = (*COMMON, *(name for name in Image.ID if name in PICTURES and name not in COMMON))
SUFFIXES = frozenset(
    suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS or name == "MPO"
)
logging.getLogger("PIL").addHandler(logging.NullHandler())  # what it logs it also raises; stderr has no file names


class ImageError(ValueError):
    """An image that cannot be used; the message continues a sentence that begins with the file's name."""


@dataclass(frozen=True)
class Target:
    """How images are resized: to ``size`` pixels (None: kept), see :func:`fit`, or ``squash``-ed to the square."""

    size: int | None = None
    resample: str = "bilinear"
    squash: bool = False

    def __str__(self) -> str:
        return f"{self.resample}, {'squashed to the square' if self.squash else 'its centre cropped'}"


def tally(count: int, noun: str, text: str, example: str) -> str:
    """A sentence about ``count`` files, one of which is ``example``."""
    return f"{count} {noun}{'s' if count > 1 else ''}: {text}; e.g. {example}."


class Decoder:
    """Turns image files into pixels and counts, with an example of each, what it had to interpret."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._remarks: dict[str, tuple[int, str]] = {}
        self._peaks: dict[int, tuple[int, str]] = {}  # of integers, by the largest value of their type
        self._floats: dict[int, str] = {}  # an example by what they were multiplied with

    def decode(self, content: bytes, name: str) -> np.ndarray:
        """The image file ``content`` as uint8 ``[H, W, 3]``.

        Raises:
            ImageError: damaged, too large, or of a mode or range that no rule covers.
        """
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            _check_shape(image)
            _scale_transparent_key(image)
            if image.format != "PSD" and getattr(image, "is_animated", False):  # PSD: its frames are layers
                self._remark("several frames, the first one is read", name)
            self._load(image, name)
            rgb = self._upright(self._to_rgb(image, name), image, name)
            return np.asarray(self._resized(rgb))
        except ImageError:
            raise
        except Image.DecompressionBombError as error:
            raise ImageError(f"has more than {MAX_PIXELS:,} pixels; make it smaller") from error
        except UnidentifiedImageError as error:
            nature = "is no image that Pillow reads" if content else "is empty"
            raise ImageError(f"{nature}; replace or remove that file") from error
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
            raise ImageError(f"is no readable image ({error}); replace or remove that file") from error

    def warned(self, caught: list[warnings.WarningMessage], name: str) -> None:
        """Count the warnings that came up while ``name`` was read."""
        for text in {re.sub(r"\d+", "N", " ".join(str(warning.message).split())) for warning in caught}:
            self._remark(f"Pillow warns '{text}'", name)

    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing that was interpreted.

        Raises:
            ImageError: images that are fine one by one do not fit together.
        """
        if len(self._floats) == 2:
            raise ImageError(
                f"{self._floats[1]} holds floats beyond 1, but those of {self._floats[255]} lie in 0 to 1; "
                "scale all of them alike"
            )
        for limit, (peak, example) in self._peaks.items():
            if 0 < peak and round(peak * 255 / limit) == 0:
                raise ImageError(
                    f"no integer in images of the range 0 to {limit} is larger than {peak} ({example}), "
                    "so that all would be black; save them with 8 bits, or scale them"
                )
        remarks = [tally(count, "image", text, name) for text, (count, name) in sorted(self._remarks.items())]
        for limit, (peak, example) in sorted(self._peaks.items()):
            dark = ", so that they are dark" if 4 * peak < limit else ""
            remarks.append(f"The largest integer in images of the range 0 to {limit} is {peak}{dark}; e.g. {example}.")
        return tuple(remarks)

    def _remark(self, text: str, name: str) -> None:
        count, example = self._remarks.get(text, (0, name))
        self._remarks[text] = count + 1, min(example, name)

    def _load(self, image: Image.Image, name: str) -> None:
        if image.format != "TIFF":
            image.load()
            return
        with _native_stderr() as lines:
            image.load()
        for line in dict.fromkeys(re.sub(r"\d+", "N", line) for line in lines):
            self._remark(f"libtiff says '{line}'", name)

    def _to_rgb(self, image: Image.Image, name: str) -> Image.Image:
        if image.mode == "RGB" and "transparency" not in image.info:
            return image
        if image.mode not in RULES:
            raise ImageError(f"has the mode {image.mode!r}, which is not read; save it as RGB")
        return RULES[image.mode](self, image, name)

    def _colours(self, image: Image.Image, name: str) -> Image.Image:
        """Modes of 8-bit channels; a colour that is marked as transparent makes them transparent."""
        if 2 in _tag(image, SAMPLE_FORMAT):
            raise ImageError("holds signed 8-bit values; save it as unsigned")
        return self._transparent(image, name) if image.has_transparency_data else image.convert("RGB")

    def _transparent(self, image: Image.Image, name: str) -> Image.Image:
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        if np.asarray(rgba)[..., 3].min() == 255:
            return rgba.convert("RGB")
        canvas = Image.new("RGBA", rgba.size, BACKGROUND)
        rgb = Image.alpha_composite(canvas, rgba).convert("RGB")
        self._remark(f"transparent, composited on {BACKGROUND}", name)
        pixels = np.asarray(rgb)
        if (pixels == pixels[0, 0]).all():
            self._remark(f"one constant colour after compositing on {BACKGROUND}", name)
        return rgb

    def _integers(self, image: Image.Image, name: str) -> Image.Image:
        """Grey integers of more than 8 bits, scaled by the range of their type."""
        values, limit = _integer_range(image)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > limit:
            raise ImageError(f"holds values from {low} to {high}, but its type is read as 0 to {limit}; scale it")
        peak, example = self._peaks.get(limit, (-1, name))
        if (-high, name) < (-peak, example):
            self._peaks[limit] = high, name
        self._remark(f"integers of the range 0 to {limit}, divided by {limit / 255:.15g}", name)
        if _white_is_zero(image):
            values = limit - values
        grey = Image.fromarray(((values * 255 + limit // 2) // limit).astype(np.uint8))
        key = image.info.get("transparency")
        if key is None:
            return grey.convert("RGB")
        grey.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
        return self._transparent(grey, name)

    def _floating(self, image: Image.Image, name: str) -> Image.Image:
        """Grey floats in 0-1 or 0-255; the same range for all images of a data set, see :meth:`notes`."""
        values = np.asarray(image)
        low, high = float(values.min()), float(values.max())
        if not (0 <= low and high <= 255):  # also false for NaN
            raise ImageError(f"holds floats from {low:g} to {high:g}, but only 0 to 1 and 0 to 255 are read; scale it")
        scale = 255 if high <= 1 else 1
        if high > 0:  # black is black in both
            self._floats[scale] = min(self._floats.get(scale, name), name)
        self._remark("floats, taken as 0 to 1" if scale == 255 else "floats, taken as 0 to 255", name)
        scaled = np.rint(values * scale).astype(np.uint8)
        return Image.fromarray(255 - scaled if _white_is_zero(image) else scaled).convert("RGB")

    def _upright(self, rgb: Image.Image, image: Image.Image, name: str) -> Image.Image:
        """``rgb`` turned as the EXIF data of ``image`` say; Pillow turns TIFF itself."""
        if image.format == "TIFF" or EXIF_KEYS.isdisjoint(image.info):
            return rgb
        try:
            turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
        except Exception:  # damaged EXIF data raise nearly anything
            self._remark("unreadable EXIF data, not turned", name)
            return rgb
        if turn is None:
            return rgb
        self._remark("turned upright by their EXIF orientation", name)
        return rgb.transpose(turn)

    def _resized(self, rgb: Image.Image) -> Image.Image:
        size, resample = self._target.size, self._target.resample
        if size is None:
            return rgb
        if self._target.squash:
            return rgb.resize((size, size), FILTERS[resample])
        if (resized := size * size * max(rgb.size) // min(rgb.size)) > MAX_PIXELS:
            raise ImageError(f"would have {resized:,} pixels at size {size}, more than {MAX_PIXELS:,}; crop it")
        return fit(rgb, size, resample)


RULES: Mapping[str, Callable[[Decoder, Image.Image, str], Image.Image]] = {
    **dict.fromkeys(("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"), Decoder._colours),
    **dict.fromkeys(("LA", "La", "PA", "RGBA", "RGBa"), Decoder._transparent),
    **dict.fromkeys(("I;16", "I;16L", "I;16B", "I;16N", "I"), Decoder._integers),
    "F": Decoder._floating,
}


@contextmanager
def _native_stderr() -> Iterator[list[str]]:
    """Collects, when it is left, what C libraries wrote to standard error: libtiff reports there without file names."""
    lines: list[str] = []
    try:
        original = os.dup(2)
    except OSError:  # closed
        yield lines
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(original, 2)
            os.close(original)
            file.seek(0)
            lines += file.read().decode(errors="replace").split("\n")[:-1]


def _check_shape(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError(f"has {width}x{height} pixels, more than {MAX_PIXELS:,}; make it smaller")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"has {width}x{height} pixels: one side is over {MAX_ASPECT} times the other; crop it")


def _tag(image: Image.Image, number: int) -> tuple[int, ...]:
    """A numeric tag of a TIFF, () if there is none."""
    value = image.tag_v2.get(number, ()) if isinstance(image, TiffImageFile) else ()
    return value if isinstance(value, tuple) else (value,)


def _white_is_zero(image: Image.Image) -> bool:
    """Whether white is stored as 0: Pillow turns this round for 8-bit TIFFs alone."""
    return 0 in _tag(image, PHOTOMETRIC)


def _integer_range(image: Image.Image) -> tuple[np.ndarray, int]:
    """Values (int64 ``[H, W]``) of a mode of 16- or 32-bit integers, and the largest value of the type in the file.

    Pillow's mode I stands for 16-bit PNG and PPM files and for signed and unsigned TIFF files alike.
    """
    values = np.asarray(image)
    if image.format != "TIFF":
        return values.astype(np.int64), 2**31 - 1 if image.mode == "I" and image.format not in ("PNG", "PPM") else 65535
    bits = next(iter(_tag(image, BITS_PER_SAMPLE)), 16)
    if 2 in _tag(image, SAMPLE_FORMAT):
        return values.astype(np.int64), 2 ** (bits - 1) - 1
    return (values.view(np.uint32) if values.dtype == np.int32 else values).astype(np.int64), 2**bits - 1


def _scale_transparent_key(image: Image.Image) -> None:
    """Bring the transparent colour of a PNG to the 8 bits of the pixels that Pillow makes of 2, 4 or 16 bits."""
    key = image.info.get("transparency")
    if not isinstance(image, PngImageFile) or key is None or not image.tile:
        return
    match image.tile[0][3]:
        case "L;2":
            image.info["transparency"] = key * 85
        case "L;4":
            image.info["transparency"] = key * 17
        case "RGB;16B":
            image.info["transparency"] = tuple(part >> 8 for part in key)
