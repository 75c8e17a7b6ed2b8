"""Decoding of one image, whatever its format, mode, orientation and size."""

import dataclasses
import zlib

import numpy as np
import pytest
from PIL import Image

from ditlab.data.images.decoding import (
    AspectBuckets,
    CaptionedImage,
    DecodedImage,
    DecodingRules,
    decode,
)
from ditlab.data.stores.receipt import DroppedRecord
from support.damage import bit_flips
from support.datasets.photographs import encoded, smooth

RULES = DecodingRules(
    AspectBuckets(resolution=64, step=16, min_side=16, max_side=128), caption_length=20
)


def decoded(content, caption=b"a slope", rules=RULES):
    answer = decode(rules, CaptionedImage("here", content, caption))
    assert isinstance(answer, DecodedImage), answer
    return answer


def skipped(content, caption=b"a slope"):
    answer = decode(RULES, CaptionedImage("here", content, caption))
    assert isinstance(answer, DroppedRecord), answer
    return answer


def pixels_of(image):
    return np.asarray(image).transpose(2, 0, 1)


def test_an_image_of_a_buckets_size_keeps_every_pixel():
    image = np.random.default_rng(0).integers(0, 256, (48, 80, 3), dtype=np.uint8)
    one = decoded(encoded(image))
    assert one.size == (48, 80) and one.pixels.dtype == np.uint8
    assert np.array_equal(one.pixels, pixels_of(image))


def test_an_image_is_scaled_to_cover_and_cropped_around_its_centre():
    """200 x 480 (height x width) in 48 x 80: scaled by 0.24 to 48 x 115.2, of which the middle 80
    columns stay.
    """
    columns = np.broadcast_to(np.linspace(0, 240, 480)[None, :, None], (200, 480, 3))
    image = encoded(columns.astype(np.uint8))
    rules = DecodingRules(AspectBuckets(64, 16, 48, 80), 20)
    one = decoded(image, rules=rules)
    assert one.size == (48, 80)
    # in columns of the original
    shown = (np.arange(80) + 0.5) / 80 * (80 / 0.24) + (480 - 80 / 0.24) / 2
    assert np.abs(one.pixels - shown * 240 / 480).max() < 2


def test_fine_detail_is_averaged_not_picked():
    """Lines one pixel wide turn grey where an image shrinks without aliasing."""
    lines = np.zeros((256, 256, 3), np.uint8)
    lines[:, ::2] = 255
    inside = decoded(encoded(lines)).pixels[:, :, 3:-3]
    assert np.abs(inside.astype(int) - 127).max() <= 5


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "BMP", "PNG"])
def test_formats(kind):
    image = smooth(300, 200)
    one = decoded(encoded(image, kind))
    expected = pixels_of(image.resize((one.size.width, one.size.height), Image.Resampling.BOX))
    assert one.size == (80, 48)
    assert np.abs(one.pixels.astype(int) - expected).max() < 10


def test_a_turned_jpeg_that_is_decoded_at_a_fraction_keeps_its_picture():
    upright = smooth(480, 800, seed=2)
    exif = Image.Exif()
    exif[0x0112] = 6
    one = decoded(encoded(upright.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif))
    assert one.size == (48, 80)
    assert np.abs(one.pixels.astype(int) - decoded(encoded(upright)).pixels).max() <= 4


def test_transparency_is_laid_on_white():
    image = np.zeros((16, 16, 4), np.uint8)
    image[..., 0] = 200
    image[:8, :, 3] = 255
    image[8:12, :, 3] = 128
    pixels = decoded(encoded(image)).pixels
    assert (pixels[:, :8].transpose(1, 2, 0) == (200, 0, 0)).all()
    assert np.abs(pixels[:, 8:12].transpose(1, 2, 0) - np.array([227, 127, 127.0])).max() <= 1
    assert (pixels[:, 12:] == 255).all()


def test_a_palette_with_a_transparent_colour_is_laid_on_white():
    image = Image.new("P", (16, 16), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (0, 0, 16, 8))
    pixels = decoded(encoded(image, transparency=0)).pixels
    assert (pixels[:, :8].transpose(1, 2, 0) == (200, 100, 50)).all()
    assert (pixels[:, 8:] == 255).all()


def test_broken_files_are_skipped_with_a_reason():
    whole = encoded(smooth(100, 100), "JPEG")
    assert "truncated" in skipped(whole[: len(whole) // 2]).detail.lower()
    assert skipped(b"I am text").detail == "no BMP, JPEG, PNG, TIFF or WEBP image"
    assert skipped(b"").reason == skipped(None).reason == "unreadable"
    assert skipped(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n").reason == "unreadable"


def of_size(side):
    """Return a PNG whose header says that it has side x side pixels, and whose data are those of
    8x8.
    """
    content = bytearray(encoded(Image.new("1", (8, 8))))
    content[16:24] = side.to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("side", "words"),
    [(8001, "8,001x8,001 pixels"), (13_000, "13,000x13,000 pixels"), (40_000, "1600000000 pixels")],
)
def test_an_image_of_too_many_pixels_is_skipped_by_its_header(side, words):
    answer = skipped(of_size(side))
    assert (answer.reason, answer.detail) == (
        "too large",
        f"{words}, more than --max-pixels=64000000",
    )
    assert skipped(of_size(8000)).reason == "unreadable", "it was decoded"


def test_the_most_pixels_are_a_knob():
    before = Image.MAX_IMAGE_PIXELS
    try:  # 196 million pixels, which Pillow refuses by itself
        answer = decode(
            dataclasses.replace(RULES, max_pixels=200_000_000),
            CaptionedImage("x", of_size(14_000), b"a"),
        )
    finally:
        Image.MAX_IMAGE_PIXELS = before
    assert answer.reason == "unreadable" and "pixels" not in answer.detail, "it was decoded"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_flipped_bits_cost_an_image_at_most_itself(kind):
    for damaged in bit_flips(encoded(smooth(20, 24), kind), 150):
        decode(RULES, CaptionedImage("here", damaged, b"a slope"))


def test_captions_are_stripped_and_cut_between_characters():
    image = encoded(smooth(20, 20))
    assert decoded(image, b"\xef\xbb\xbf  a red\x00 dot \r\n").caption == b"a red dot"
    whole = decoded(image, "ein großer roter Hund".encode()[:20])
    assert not whole.caption_was_cut
    one = decoded(image, ("x" * 19 + "ß").encode())
    assert (one.caption, one.caption_was_cut) == (b"x" * 19, True)


def fitted(image, fit, grey=False):
    """Decode a PNG to a square."""
    rules = DecodingRules(AspectBuckets(64, 64, 64, 64, fit), 20, captions=False, grey=grey)
    return decode(rules, CaptionedImage("here", encoded(image), None))


def test_a_padded_image_is_whole_between_two_white_bars():
    """128 x 64 (width x height) in 64 x 64: half as large, with 16 white rows above and below."""
    wide = smooth(64, 128)
    one = fitted(wide, "pad")
    whole = pixels_of(wide.resize((64, 32), Image.Resampling.LANCZOS))
    assert np.array_equal(one.pixels[:, 16:48], whole)
    assert (one.pixels[:, :16] == 255).all() and (one.pixels[:, 48:] == 255).all()
    # as high as the size: not scaled, and 31 columns are shared out
    tall = fitted(smooth(64, 33), "pad")
    assert np.array_equal(tall.pixels[:, :, 16:49], pixels_of(smooth(64, 33)))
    assert (tall.pixels[:, :, :16] == 255).all() and (tall.pixels[:, :, 49:] == 255).all()


def test_a_padded_image_that_is_shorter_on_both_sides_or_a_line_is_left_out():
    for height, width in ((63, 63), (20, 40), (1, 10_000)):
        assert fitted(smooth(height, width), "pad").reason == "too small"


def test_grey_is_the_luma_on_white():
    """L = (299 R + 587 G + 114 B) / 1000, ITU-R 601-2, in Pillow's 16 bits."""
    colours = np.random.default_rng(0).integers(0, 256, (64, 64, 4), dtype=np.uint8)
    colours[..., 3] = 255
    colours[:8, :, 3] = 0
    one = fitted(Image.fromarray(colours), "crop", grey=True)
    luma = colours[..., :3] @ np.array([0.299, 0.587, 0.114])
    assert one.pixels.shape == (1, 64, 64) and one.pixels.dtype == np.uint8
    assert np.abs(one.pixels[0, 8:] - luma[8:]).max() <= 0.51 and (one.pixels[0, :8] == 255).all()
    assert (fitted(Image.new("RGB", (64, 128)), "pad", grey=True).pixels[0, :, :16] == 255).all()
