"""Image files become 8-bit RGB by one rule per Pillow mode; what cannot be is refused with the file's name."""

from __future__ import annotations

import io
import re
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps

from par.streams.pixels import MAX_ASPECT, RULES, SUFFIXES, Decoder, ImageError, Target
from par.streams.reading import Request, Source, SourceError
from par.streams.sources import load_source

DOCS = Path(__file__).parents[2] / "docs" / "images.md"


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def tiff(values: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **options)
    return buffer.getvalue()


def png(width: int, height: int, depth: int, colour: int, rows: bytes, key: bytes = b"") -> bytes:
    """A PNG of any bit depth and colour type, with a transparent colour if asked for."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    transparent = chunk(b"tRNS", key) if key else b""
    return b"\x89PNG\r\n\x1a\n" + head + transparent + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def decode(content: bytes, **target) -> tuple[np.ndarray, tuple[str, ...]]:
    decoder = Decoder(Target(**target))
    return decoder.decode(content, "a.png"), decoder.notes()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def source_of(folder: Path, *contents: bytes, suffix: str = ".png", size: int | None = None) -> Source:
    """A data set of one class whose training images are ``contents``, and whose test image is the first of them."""
    for split, files in (("train", contents), ("test", contents[:1])):
        (folder / "own" / split / "a").mkdir(parents=True)
        for number, content in enumerate(files):
            (folder / "own" / split / "a" / f"{number}{suffix}").write_bytes(content)
    return load_source(Request("own", "own", folder, size))


# --- modes ---


def test_every_mode_has_a_rule_and_a_row_in_the_documentation():
    rows = "\n".join(line for line in DOCS.read_text().splitlines() if line.startswith("|"))
    for mode in RULES:
        assert re.search(rf"[|,;] ?{re.escape(mode)}[ ,|;]", rows), mode


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr"])
def test_opaque_eight_bit_images_are_what_pillow_converts(mode):
    image = Image.fromarray(noise(9, 7, 3)).convert(mode)
    content = encoded(image, "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
    pixels, notes = decode(content)
    np.testing.assert_array_equal(pixels, np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))
    assert notes == ()


def test_lab_is_converted():
    grey, notes = decode(encoded(Image.merge("LAB", [Image.new("L", (4, 4), v) for v in (255, 128, 128)]), "TIFF"))
    assert np.abs(grey.astype(int) - 255).max() <= 3 and notes == ()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white_and_hidden_colours_do_not_show(mode):
    colours, alpha = noise(8, 8, 3), np.zeros((8, 8), np.uint8)
    alpha[2:6, 2:6] = 255
    if mode != "RGBA":
        colours[:] = np.minimum(colours[..., :1], 254)
    if mode == "P":
        palette = Image.fromarray(np.where(alpha, colours[..., 0], 255).astype(np.uint8)).convert("P")
        content = encoded(palette, transparency=255)
    else:
        content = encoded(Image.fromarray(np.dstack([colours, alpha])).convert(mode))
    pixels, notes = decode(content)
    np.testing.assert_array_equal(pixels[2:6, 2:6], colours[2:6, 2:6])
    assert (pixels[alpha == 0] == 255).all()
    assert notes == ("1 image: transparent, composited on white; e.g. a.png.",)


def test_a_palette_with_alpha_is_composited():
    image = Image.new("PA", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([(0, 255), (1, 0)])
    pixels = np.asarray(RULES["PA"](Decoder(Target()), image, "a"))
    assert pixels.tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_half_transparency_is_blended():
    pixels, _ = decode(encoded(Image.new("RGBA", (4, 4), (0, 100, 200, 51))))
    np.testing.assert_allclose(pixels[0, 0], 255 - 0.2 * (255 - np.array([0, 100, 200])), atol=1)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_opaque_alpha_channel_changes_nothing(mode):
    image = Image.fromarray(noise(6, 6, 3)).convert(mode)
    pixels, notes = decode(encoded(image))
    np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))
    assert notes == ()


def test_premultiplied_colours_are_divided():
    image = Image.new("RGBA", (4, 4), (200, 100, 0, 128))
    decoder = Decoder(Target())
    for premultiplied in (image.convert("RGBa"), image.convert("LA").convert("La")):
        straight = decoder._transparent(premultiplied, "a")
        expected = decoder._transparent(image if premultiplied.mode == "RGBa" else image.convert("LA"), "a")
        assert np.abs(np.asarray(straight).astype(int) - np.asarray(expected)).max() <= 2


def test_a_white_shape_that_is_lost_on_white_is_counted():
    alpha = np.zeros((8, 8), np.uint8)
    alpha[2:5] = 255
    _, notes = decode(encoded(Image.fromarray(np.dstack([np.full((8, 8, 3), 255, np.uint8), alpha]))))
    assert "1 image: one constant colour after compositing on white; e.g. a.png." in notes


@pytest.mark.parametrize(
    "content, transparent",
    [
        (png(8, 1, 1, 0, b"\0\xf0", struct.pack(">H", 0)), [0] * 4 + [1] * 4),
        (png(4, 1, 2, 0, b"\0\x1b", struct.pack(">H", 2)), [0, 0, 1, 0]),
        (png(2, 1, 4, 0, b"\0\x3a", struct.pack(">H", 3)), [1, 0]),
        (png(2, 1, 8, 0, b"\0\x03\xf3", struct.pack(">H", 3)), [1, 0]),
        (png(2, 1, 8, 2, b"\0\1\2\3\4\5\6", struct.pack(">HHH", 4, 5, 6)), [0, 1]),
        (png(2, 1, 16, 0, b"\0" + struct.pack(">HH", 1000, 40000), struct.pack(">H", 40000)), [0, 1]),
        (
            png(2, 1, 16, 2, b"\0" + struct.pack(">6H", 9, 9, 9, 400, 500, 600), struct.pack(">3H", 400, 500, 600)),
            [0, 1],
        ),
    ],
    ids=["1 bit", "2 bits", "4 bits", "8 bits", "RGB", "16 bits", "RGB of 16 bits"],
)
def test_a_transparent_colour_is_white(content, transparent):
    pixels, notes = decode(content)
    hidden = np.array(transparent, bool)
    assert (pixels[0][hidden] == 255).all()
    assert any("transparent" in note for note in notes)
    without = re.sub(rb"....tRNS.*(?=....IDAT)", b"", content, flags=re.DOTALL)
    np.testing.assert_array_equal(pixels[0][~hidden], decode(without)[0][0][~hidden])


# --- more than eight bits ---

WHITE_IS_ZERO = {"photometric": "miniswhite"}
SIXTEEN = np.array([[0, 128, 129, 257, 1000], [10000, 40000, 65278, 65406, 65535]], np.uint16)
SCALED = np.array([[0, 0, 1, 1, 4], [39, 156, 254, 254, 255]], np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        encoded(Image.fromarray(SIXTEEN)),
        encoded(Image.fromarray(SIXTEEN), "TIFF"),
        tiff(SIXTEEN, byteorder=">"),
        tiff(SIXTEEN, photometric="minisblack", compression="zlib"),
        tiff(65535 - SIXTEEN, **WHITE_IS_ZERO),
        b"P5\n5 2\n65535\n" + SIXTEEN.astype(">u2").tobytes(),
        tiff(SIXTEEN.astype(np.uint32) * 65537),
    ],
    ids=["png", "tiff", "big-endian", "compressed", "white is zero", "pgm", "32 bits"],
)
def test_integers_are_scaled_by_the_range_of_their_type(content):
    pixels, notes = decode(content)
    for channel in range(3):
        np.testing.assert_array_equal(pixels[..., channel], SCALED)
    assert any("integers of the range 0 to" in note and "divided by" in note for note in notes)


@pytest.mark.parametrize("dtype, top", [(np.int32, 2**31 - 1), (np.int16, 2**15 - 1)])
def test_signed_integers_use_their_positive_half(dtype, top):
    pixels, _ = decode(tiff(np.array([[0, top // 2], [top, top // 4]], dtype)))
    np.testing.assert_array_equal(pixels[..., 0], [[0, 127], [255, 64]])
    with pytest.raises(ImageError, match="holds values from -5 to 3, but its type is read as 0 to"):
        decode(tiff(np.array([[0, -5], [3, 3]], dtype)))


def test_signed_bytes_are_refused():
    with pytest.raises(ImageError, match="signed 8-bit"):
        decode(tiff(np.array([[0, -5], [3, 3]], np.int8)))


def test_the_largest_value_of_dark_images_is_noted_and_black_ones_are_refused(tmp_path):
    twelve = [encoded(Image.fromarray(noise(4, 4, seed=seed).astype(np.uint16) * 16)) for seed in range(3)]
    source = source_of(tmp_path / "one", *twelve)
    assert any("The largest integer in images of the range 0 to 65535 is " in note for note in source.notes)
    labels = [encoded(Image.fromarray(noise(4, 4, seed=seed).astype(np.uint16) // 2)) for seed in range(3)]
    message = r"own: no integer in images of the range 0 to 65535 is larger than \d+ \(.*png\), so that all"
    with pytest.raises(SourceError, match=message):
        source_of(tmp_path / "two", *labels)
    source_of(tmp_path / "three", labels[0], twelve[0])  # one dark image among others is a dark image


@pytest.mark.parametrize("top, words", [(1, "taken as 0 to 1"), (255, "taken as 0 to 255")])
def test_floats_of_two_ranges_are_read(top, words):
    values = np.linspace(0, top, 12, dtype=np.float32).reshape(3, 4)
    for content in (tiff(values), encoded(Image.fromarray(values), "TIFF"), tiff(values[::-1, ::-1], **WHITE_IS_ZERO)):
        pixels, notes = decode(content)
        np.testing.assert_array_equal(pixels[..., 1], np.rint(np.linspace(0, 255, 12)).reshape(3, 4))
        assert words in notes[0]


@pytest.mark.parametrize("low, high", [(-0.1, 1), (0, 255.5), (0, np.nan), (0, np.inf), (-1, 0)])
def test_other_floats_are_refused_by_name_and_range(tmp_path, low, high):
    values = np.full((4, 4), low, np.float32)
    values[0, 0] = high
    with pytest.raises(SourceError, match=r"train/a/0.tif holds floats from .* but only 0 to 1 and 0 to 255 are read"):
        source_of(tmp_path, tiff(values), suffix=".tif")


def test_floats_of_unlike_ranges_do_not_go_together(tmp_path):
    small, large = (np.linspace(0, top, 16, dtype=np.float32).reshape(4, 4) for top in (1, 200))
    black = tiff(np.zeros((4, 4), np.float32))
    message = "train/a/2.tif holds floats beyond 1, but those of test/a/0.tif lie in 0 to 1"
    with pytest.raises(SourceError, match=message):
        source_of(tmp_path / "one", tiff(small), black, tiff(large), suffix=".tif")
    assert len(source_of(tmp_path / "two", tiff(large), black, suffix=".tif").images["train"]) == 2


# --- orientation, frames ---


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(format, orientation):
    from PIL import features

    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    upright = np.repeat(np.repeat(noise(3, 5, 3), 8, axis=0), 8, axis=1)
    tags = Image.Exif()
    tags[0x0112] = orientation
    options = {} if format == "TIFF" else {"quality": 95}
    stored = Image.fromarray(upright)
    content = encoded(stored, format, exif=tags, **options)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    pixels, notes = decode(content)
    np.testing.assert_array_equal(pixels, np.asarray(expected))
    assert pixels.shape == ((40, 24, 3) if orientation >= 5 else (24, 40, 3))


def test_orientation_is_counted_and_comes_before_resizing(tmp_path):
    tags = Image.Exif()
    tags[0x0112] = 6
    content = encoded(Image.fromarray(noise(20, 40, 3)), exif=tags)
    source = source_of(tmp_path, content, size=8)
    upright = Image.fromarray(noise(20, 40, 3)).transpose(Image.Transpose.ROTATE_270)
    np.testing.assert_array_equal(source.images["train"][0], decode(encoded(upright), size=8)[0])
    assert source.notes == ("2 images: turned upright by their EXIF orientation; e.g. test/a/0.png.",)


def test_damaged_exif_data_are_counted_and_nothing_reaches_stderr(tmp_path, capfd):
    content = encoded(Image.fromarray(noise(8, 8, 3)), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01\x12\0\x03\0\0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = source_of(tmp_path, content, suffix=".jpg")
    assert len(source.notes) == 1 and "2 images: " in source.notes[0] and "EXIF" in source.notes[0]
    assert "test/a/0.jpg" in source.notes[0]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_several_is_read_and_counted(format):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    options = {"lossless": True} if format == "WEBP" else {}
    pixels, notes = decode(encoded(frames[0], format, save_all=True, append_images=frames[1:], **options))
    assert (pixels == (255, 0, 0)).all()
    assert notes == ("1 image: several frames, the first one is read; e.g. a.png.",)


def test_pillows_warnings_are_notes_with_a_file_name(tmp_path, capfd):
    content = tiff(noise(8, 8, 3), photometric="rgb")
    cut = content[:4] + struct.pack("<I", len(content)) + content[8:]  # points behind the end: no tags
    with pytest.raises(SourceError, match="train/a/0.tif is no .*image"):
        source_of(tmp_path / "one", cut, suffix=".tif")
    decoder = Decoder(Target())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("Metadata Warning, tag 256 had too many entries: 4, expected 1", stacklevel=1)
    decoder.warned(caught, "b.tif")
    decoder.warned(caught, "a.tif")
    message = "Metadata Warning, tag N had too many entries: N, expected N"
    assert decoder.notes() == (f"2 images: Pillow warns '{message}'; e.g. a.tif.",)
    assert capfd.readouterr().err == ""


def test_what_libtiff_reports_is_a_note_with_a_file_name(tmp_path, capfd):
    content = bytearray(encoded(Image.fromarray(noise(32, 32)).convert("1"), "TIFF", compression="group4"))
    content[20:40] = bytes(20)  # not all of these are codes of the fax format
    source = source_of(tmp_path, bytes(content), suffix=".tif")
    assert source.notes and all("2 images: libtiff says 'Fax" in note for note in source.notes)
    assert all("; e.g. test/a/0.tif." in note for note in source.notes)
    assert capfd.readouterr().err == ""


# --- limits, damage ---


def test_a_long_strip_is_refused_before_it_is_resized(tmp_path):
    strip = encoded(Image.new("1", (20000, 1)))
    with pytest.raises(SourceError, match=f"train/a/0.png has 20000x1 pixels: one side is over {MAX_ASPECT} times"):
        source_of(tmp_path, strip, size=224)
    assert decode(encoded(Image.new("L", (MAX_ASPECT * 4, 4))), size=8)[0].shape == (8, 8, 3)


@pytest.mark.parametrize("side", [8001, 20000, 60000])
def test_too_many_pixels_are_refused_before_decoding(tmp_path, side):
    head = png(side, side, 1, 0, b"")  # nothing behind its size
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SourceError, match=r"train/a/0.png has .*more than 64,000,000"):
            source_of(tmp_path, head)


def test_too_many_pixels_after_resizing_are_refused():
    with pytest.raises(ImageError, match="would have 128,000,000 pixels at size 2000"):
        decode(encoded(Image.new("1", (320, 10))), size=2000)


def test_a_data_set_larger_than_the_memory_is_refused(tmp_path):
    content = encoded(Image.new("1", (8000, 8000)))
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as archive:
        archive.writestr("test/a/0.png", content)
        archive.writestr("train/a/0.png", content)
        blank = encoded(Image.new("1", (1, 1)))
        for number in range(1, 5_000):
            archive.writestr(f"train/a/{number}.png", blank)
    with pytest.raises(SourceError, match=r"5001 images of 8000x8000 pixels need 960.2 GB of memory, .* are free"):
        load_source(Request("own", "own", tmp_path))


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "is empty"),
        (b"hello", "is no image that Pillow reads"),
        (encoded(Image.fromarray(noise(32, 32, 3)))[:-100], "is no readable image"),
        (encoded(Image.fromarray(noise(32, 32, 3)), "JPEG")[:-100], "is no readable image"),
        (tiff(np.ones((4, 4), np.float64)), "is no image that Pillow reads"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "is no image that Pillow reads"),
    ],
    ids=["empty", "text", "cut png", "cut jpeg", "64-bit floats", "a program"],
)
def test_damaged_files_are_one_sentence_with_their_name(tmp_path, content, words):
    with pytest.raises(SourceError, match=rf"own: train/a/0.png {words}.*replace or remove that file\.$") as caught:
        source_of(tmp_path, content)
    assert "object at" not in str(caught.value) and "\n" not in str(caught.value)


def test_suffixes_are_those_of_pictures():
    common = ".png .jpg .jpeg .jfif .jpe .jp2 .webp .bmp .gif .tif .tiff .tga .pgm .pbm .ppm .pnm .ico .mpo"
    assert set(common.split()) <= SUFFIXES
    assert not SUFFIXES & set(".pdf .eps .ps .mpg .mpeg .wmf .emf .h5 .hdf .fits .grib .bufr .txt .npy".split())
