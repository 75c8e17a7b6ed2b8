"""The one reader of pictures: the same picture in any format, orientation and mode."""

import numpy as np
import pytest
from PIL import Image

from ditlab.analysis.drawing import start_image
from ditlab.data.images.decoding import AspectBuckets, CaptionedImage, DecodingRules, decode
from ditlab.data.images.pictures import CONVERTED, NO_PROFILE, open_picture
from support.datasets.odd_sources import letter_of, pic, red_and_green_exchanged
from support.datasets.photographs import encoded, smooth

UPRIGHT = smooth(48, 80, seed=1)
STORED = {  # what a camera held so has stored
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
LOSSLESS = {"PNG": {}, "TIFF": {}, "WEBP": {"lossless": True}, "JPEG": {"quality": 100}}


def read(content):
    with open_picture(content) as picture:
        size = picture.size
        pixels = np.asarray(picture.read())
        assert pixels.shape == (*size, 3) and pixels.dtype == np.uint8
        return pixels, picture.changes


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("orientation", STORED)
def test_a_turned_picture_has_its_size_and_bucket_in_every_format(kind, orientation):
    operation = STORED[orientation]
    stored = UPRIGHT if operation is None else UPRIGHT.transpose(operation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(stored, kind, exif=exif, **LOSSLESS[kind])
    pixels, changes = read(content)
    assert pixels.shape[:2] == (48, 80) and changes == ()
    rules = DecodingRules(AspectBuckets(64, 16, 16, 128), 20, captions=False)
    one = decode(rules, CaptionedImage("here", content, None))
    assert one.size == (48, 80), "the bucket of the turned picture"
    bound = 4 if kind == "JPEG" else 0
    for found in (pixels, one.pixels.transpose(1, 2, 0)):
        assert np.abs(found.astype(int) - np.asarray(UPRIGHT)).max() <= bound


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encoded(Image.new("RGBA", (8, 8), (200, 0, 0, 0))), (255, 255, 255)),
        (encoded(Image.new("LA", (8, 8), (0, 0))), (255, 255, 255)),
        (encoded(Image.new("1", (8, 8), 1)), (255, 255, 255)),
        (encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF"), (255, 0, 0)),
        (encoded(RAMP), RAMP[..., None]),
        (encoded(RAMP.astype(np.uint16) * 257, "TIFF"), RAMP[..., None]),
        (encoded(np.full((8, 8), 65535, np.int32), "TIFF"), (255, 255, 255)),
    ],
)
def test_every_mode_is_rgb_on_white(content, expected):
    assert (read(content)[0] == expected).all()


def test_colours_are_converted_or_it_is_said_why_not():
    grey = Image.new("L", (8, 8), 100)
    exchanged = red_and_green_exchanged()
    pixels, changes = read(pic("b", icc_profile=exchanged))
    assert letter_of(pixels.mean((0, 1))) == "d" and changes == (CONVERTED,)
    assert read(encoded(grey, icc_profile=b"none"))[1] == (NO_PROFILE,)
    cmyk = encoded(Image.new("CMYK", (8, 8)), "TIFF", icc_profile=exchanged)
    assert read(cmyk)[1] == (NO_PROFILE,), "a profile of other channels"


def test_a_start_of_samples_is_read_as_an_import_reads_it(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(
        UPRIGHT.transpose(Image.Transpose.ROTATE_90),
        "TIFF",
        exif=exif,
        icc_profile=red_and_green_exchanged(),
    )
    (tmp_path / "a.tif").write_bytes(content)
    start = start_image(tmp_path / "a.tif", (48, 80))
    pixels = np.rint((start.numpy().transpose(1, 2, 0) + 1) * 127.5)
    assert np.array_equal(pixels, read(content)[0])
