"""Decoding of a captioned image to pixels of a size of its aspect ratio (its bucket) and UTF-8
bytes.
"""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from ditlab.data.images.captions import cut
from ditlab.data.source_files import not_utf8
from ditlab.data.stores.receipt import NO_RECORD, DroppedRecord
from ditlab.errors import first_line

TOO_SMALL = "too small"
"""Reason of an image that no size takes."""
ASPECT_WEIGHT = 0.7
"""Weight of the aspect ratio's mismatch in an image's score; the rest is that of the area."""
FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")
"""Pillow's names of the formats that are read; others are not tried, as some start other
programs.
"""
IMAGE_SUFFIXES = (".bmp", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
ORIENTATION = 0x0112
"""Orientation tag of EXIF."""
TURNED = (5, 6, 7, 8)
"""Orientations that turn an image by a quarter."""
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    MemoryError,
    ArithmeticError,
)
"""Errors of Pillow for files that are no images, or damaged ones."""
MAX_PIXELS = 64_000_000
"""Most pixels of a picture, unless --max-pixels says otherwise: decoded, it takes up to 16 bytes a
pixel (1 GB).
"""


class ImageSize(NamedTuple):
    """Size of an image, in pixels."""

    height: int
    width: int


@dataclass(frozen=True)
class AspectBuckets:
    """Sizes (H, W) with sides that are multiples of `step` from `min_side` to `max_side`, and H W
    <= `resolution`^2.

    An image of h x w pixels goes to one of the sizes with H <= h and W <= w (with `fit` pad: one of
    both), so that it is never enlarged, of the least score,

        score = 0.7 (1 - exp(-|ln(w/h) - ln(W/H)|)) + 0.3 (1 - H W / resolution^2),

    the share of the image that is cropped (of the size that is padded), and the shortfall in area.
    Of equal scores it takes the larger size, then the one that is less high; one smaller than all
    sizes has none.
    """

    resolution: int
    step: int
    min_side: int
    max_side: int
    fit: str = "crop"
    """`crop` or `pad`, as of `ImagesOptions`."""

    @cached_property
    def sizes(self) -> tuple[ImageSize, ...]:
        """Sizes that images can have, by height and then width; none where even the smallest has
        too large an area.
        """
        first = -(-self.min_side // self.step) * self.step
        sides = range(first, self.max_side + 1, self.step)
        sizes = (ImageSize(height, width) for height, width in product(sides, sides))
        return tuple(size for size in sizes if size.height * size.width <= self.resolution**2)

    def score(self, image: ImageSize, bucket: ImageSize) -> float:
        """Return the mismatch of a bucket with an image, in [0, 1)."""
        mismatch = math.log(image.width / image.height) - math.log(bucket.width / bucket.height)
        cropped = 1 - math.exp(-abs(mismatch))
        shortfall = 1 - bucket.height * bucket.width / self.resolution**2
        return ASPECT_WEIGHT * cropped + (1 - ASPECT_WEIGHT) * shortfall

    @lru_cache(maxsize=65536)  # noqa: B019  few buckets, many images of one size
    def choose(self, height: int, width: int) -> ImageSize | None:
        """Return the size for an image; None where it is smaller than every size."""

        def preference(size: ImageSize) -> tuple[float, int, int]:
            # rounded, so that sizes of equal score compare equal whatever the last bit of a
            # logarithm is
            return (
                round(self.score(ImageSize(height, width), size), 12),
                -size.height * size.width,
                size.height,
            )

        def fits(size: ImageSize) -> bool:
            if self.fit == "pad":
                return size.height <= height or size.width <= width
            return size.height <= height and size.width <= width

        return min(filter(fits, self.sizes), default=None, key=preference)


class TooManyPixels(ValueError):
    """A picture has more pixels than are decoded."""


@dataclass(frozen=True)
class CaptionedImage:
    """Image and caption as a source has them."""

    name: str
    """Origin for people: a path below the source, a tar's member, a row of a file."""
    image: bytes | Path | None
    """Content of a file, or its path; None where the source has none."""
    caption: bytes | None
    """UTF-8 text; None where the source has none."""
    label: str | None = None
    """Name of its class; None where the source has no classes."""
    problem: str = ""
    """Reason why the source could not read it, if any."""
    beside: int = 0
    """Members of an archive that are its caption or class."""


@dataclass(frozen=True)
class DecodingRules:
    """Target sizes and caption length of an import."""

    buckets: AspectBuckets
    caption_length: int
    """Most bytes of a caption."""
    captions: bool = True
    """False for images that need no captions."""
    labels: bool = False
    """True for images that need a class."""
    max_pixels: int = MAX_PIXELS
    """Most pixels of a picture."""
    grey: bool = False
    """True for one channel, the luma."""


@dataclass(frozen=True)
class DecodedImage:
    """Image in its bucket's size, with its caption."""

    size: ImageSize
    pixels: np.ndarray
    """uint8 (3, height, width): red, green, blue; or (1, height, width), grey."""
    caption: bytes
    """UTF-8, at least a byte; empty where images need no captions."""
    caption_was_cut: bool
    was_converted: bool = False
    """True where its colours were those of another profile than sRGB."""
    label: str | None = None


def decode(rules: DecodingRules, item: CaptionedImage) -> DecodedImage | DroppedRecord:
    """Decode an image and its caption, without a byte order mark, NULs (which end it in its column)
    and space around.

    Lines of a caption end with LF. What cannot be decoded is dropped for a reason: `missing
    caption`, `missing class`, `unreadable`, `too small` or `too large`.
    """

    def dropped(reason: str, detail: str) -> DroppedRecord:
        return DroppedRecord(place=item.name, reason=reason, detail=detail)

    if item.problem:
        return dropped(NO_RECORD, item.problem)
    caption = b""
    if rules.captions:
        try:
            text = (item.caption or b"").decode()
        except UnicodeDecodeError as error:
            return dropped(NO_RECORD, f"its caption {not_utf8(0, error)}")
        caption = "\n".join(
            text.removeprefix("\ufeff").replace("\0", "").strip().splitlines()
        ).encode()
        if not caption:
            detail = "no caption" if item.caption is None else "an empty caption"
            return dropped("missing caption", detail)
    if rules.labels and item.label is None:
        return dropped("missing class", "no class")
    if item.image is None:
        return dropped(NO_RECORD, "no image there")
    try:
        # of large images and odd metadata: only errors matter
        with warnings.catch_warnings(action="ignore"):
            fitted, was_converted = _fitted(item.image, rules)
    except TooManyPixels as error:
        return dropped("too large", f"{error}, more than --max-pixels={rules.max_pixels}")
    except UnidentifiedImageError:
        return dropped(NO_RECORD, f"no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image")
    except BROKEN as error:
        return dropped(NO_RECORD, first_line(error))
    if isinstance(fitted, ImageSize):
        return dropped(TOO_SMALL, f"{fitted.width}x{fitted.height} pixels")
    kept = cut(caption, rules.caption_length)
    pixels = np.ascontiguousarray(np.atleast_3d(np.asarray(fitted)).transpose(2, 0, 1))
    return DecodedImage(
        ImageSize(*pixels.shape[1:]),
        pixels,
        kept,
        len(kept) < len(caption),
        was_converted,
        item.label,
    )


@contextmanager
def open_picture(content: bytes | Path, max_pixels: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """Open a picture. Raises TooManyPixels for one of more pixels, by its header, and errors of
    `BROKEN` otherwise.
    """
    # Pillow refuses twice as many, even where more are wanted
    if Image.MAX_IMAGE_PIXELS is not None:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, max_pixels)
    source: IO[bytes] = BytesIO(content) if isinstance(content, bytes) else content.open("rb")
    with source as file:
        try:
            opened = Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise TooManyPixels(
                str(error).partition("(")[2].partition(")")[0] or "too many pixels"
            ) from error
        with opened as image:
            if image.width * image.height > max_pixels:
                raise TooManyPixels(f"{image.width:,}x{image.height:,} pixels")
            yield image


def _fitted(content: bytes | Path, rules: DecodingRules) -> tuple[Image.Image | ImageSize, bool]:
    """Fit an image in sRGB, or its luma, to its bucket; gives its size where it has no bucket.

    Gives as well whether its colours were converted.
    """
    buckets = rules.buckets
    with open_picture(content, rules.max_pixels) as image:
        orientation = image.getexif().get(ORIENTATION, 1)
        width, height = image.size
        if orientation in TURNED:
            width, height = height, width
        size = buckets.choose(height, width)
        if size is None:
            return ImageSize(height, width), False
        scales = size.height / height, size.width / width
        scale = min(scales) if buckets.fit == "pad" else max(scales)
        if round(scale * min(height, width)) == 0:  # a line, of which padding would leave no pixel
            return ImageSize(height, width), False
        # a JPEG comes out at a half, a quarter or an eighth for a fraction of the time: still twice
        # as large as needed
        image.draft(None, (round(2 * scale * image.width), round(2 * scale * image.height)))
        image.load()
        upright: Image.Image = image
        if orientation != 1:
            upright = ImageOps.exif_transpose(image)
        upright, was_converted = in_srgb(upright)
    if rules.grey:
        upright = upright.convert("L")
    if buckets.fit == "pad":
        padded = ImageOps.pad(
            upright, (size.width, size.height), Image.Resampling.LANCZOS, color="white"
        )
        return padded, was_converted
    # the part of the image that the bucket shows: cropping here saves scaling the rest
    shown_width = min(upright.width, upright.height * size.width / size.height)
    shown_height = min(upright.height, upright.width * size.height / size.width)
    left = (upright.width - shown_width) / 2
    top = (upright.height - shown_height) / 2
    box = (left, top, left + shown_width, top + shown_height)
    return upright.resize(
        (size.width, size.height), Image.Resampling.LANCZOS, box=box
    ), was_converted


def in_srgb(image: Image.Image) -> tuple[Image.Image, bool]:
    """Convert an image to 8-bit RGB with sRGB's colours, transparency on white; gives as well
    whether they changed.

    Colours without a profile are taken for sRGB's, and so are those whose profile cannot be read or
    is of grey.
    """
    profile = image.info.get("icc_profile")
    mode = "CMYK" if image.mode == "CMYK" else "RGB"
    transform = _transform(profile, mode) if profile else None
    if transform is None:
        return in_rgb(image), False
    if mode == "RGB":
        image = in_rgb(image)
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None, "it is not converted in place"
    return converted, True


@lru_cache(maxsize=16)  # the photographs of a camera have one
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return the conversion of a profile's colours to sRGB's; None for sRGB itself and for one of
    other channels.
    """
    try:
        opened = ImageCms.ImageCmsProfile(BytesIO(profile))
        if opened.profile.xcolor_space.strip() != mode:
            return None
        if "sRGB" in ImageCms.getProfileDescription(opened):
            return None
        return ImageCms.buildTransform(opened, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError):
        return None


def in_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to 8-bit RGB, transparency on white; one that is in RGB is returned
    itself.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise ValueError("numbers of 32 bits with a point, whose white is not known")
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow's own conversion clips at 255
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
