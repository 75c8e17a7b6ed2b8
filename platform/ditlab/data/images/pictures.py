"""The reader of picture files: upright, 8-bit RGB in sRGB, on white; says what it changed.

Imports, statistics of folders and pictures that samples start from are read by it, so that equal
files give equal pixels.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image, ImageCms, ImageOps

FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")
"""Pillow's names of the formats that are read; others are not tried, as some start other
programs.
"""
IMAGE_SUFFIXES = (".bmp", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
TURNED_WHEN_LOADED = ("TIFF",)
"""Formats whose pictures Pillow turns upright as it loads them."""
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
WHITE_16 = 65_535
"""White of a picture of 16 bits."""
CONVERTED = "images of other colour profiles converted to sRGB"
NO_PROFILE = "images whose colour profile cannot be used taken for sRGB"
FIRST_FRAME = "images of several frames cut to their first"
DEEP = "images of 16 bits cut to their high 8"
NEARLY_BLACK = "images of 16 bits without a value above 4,095, so nearly black"
"""Changes of a picture on its way to 8-bit sRGB, as receipts count them."""


class ImageSize(NamedTuple):
    """Size of an image, in pixels."""

    height: int
    width: int


class TooManyPixels(ValueError):
    """A picture has more pixels than are decoded."""


class PictureFile:
    """Open file of a picture."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image
        self._is_deep = _is_deep(image)
        self._changes: list[str] = []
        if getattr(image, "is_animated", False):
            self._changes.append(FIRST_FRAME)
        orientation = image.getexif().get(ORIENTATION, 1)
        if image.format in TURNED_WHEN_LOADED:
            image.load()  # its size is that of the turned picture from here on
            orientation = 1
        self._is_upright = orientation == 1
        self.size = ImageSize(image.height, image.width)
        if orientation in TURNED:
            self.size = ImageSize(image.width, image.height)
        """Size of the upright picture."""

    @property
    def changes(self) -> tuple[str, ...]:
        """Changes that reading it made: `CONVERTED` and others."""
        return tuple(self._changes)

    def draft(self, scale: float) -> None:
        """Allow a picture of `scale` times its size or more, in place of the whole one.

        A JPEG comes out at a half, a quarter or an eighth for a fraction of the time.
        """
        image = self._image
        image.draft(None, (round(scale * image.width), round(scale * image.height)))

    def read(self) -> Image.Image:
        """Return the picture upright, 8-bit RGB in sRGB's colours. Raises errors of `BROKEN`."""
        upright: Image.Image = self._image
        upright.load()
        if not self._is_upright:
            upright = ImageOps.exif_transpose(upright)
        rgb, change = _in_srgb(upright)
        if change:
            self._changes.append(change)
        if self._is_deep:
            self._changes.append(DEEP)
            if max(high for _, high in _extrema(rgb)) < 4096 >> 8:
                self._changes.append(NEARLY_BLACK)
        return rgb


@contextmanager
def open_picture(content: bytes | Path, max_pixels: int = MAX_PIXELS) -> Iterator[PictureFile]:
    """Open a picture. Raises TooManyPixels for one of more pixels, by its header, and errors of
    `BROKEN` otherwise.
    """
    # Pillow refuses twice as many, even where more are wanted
    if Image.MAX_IMAGE_PIXELS is not None:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, max_pixels)
    source: IO[bytes] = BytesIO(content) if isinstance(content, bytes) else content.open("rb")
    # of large images and odd metadata: only errors matter
    with source as file, warnings.catch_warnings(action="ignore"):
        try:
            opened = Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise TooManyPixels(
                str(error).partition("(")[2].partition(")")[0] or "too many pixels"
            ) from error
        with opened as image:
            if image.width * image.height > max_pixels:
                raise TooManyPixels(f"{image.width:,}x{image.height:,} pixels")
            yield PictureFile(image)


def _is_deep(image: Image.Image) -> bool:
    """Return True for a picture of 16 bits, which Pillow may hold in 8, before it is loaded."""
    if image.mode.startswith("I"):
        return True
    return any(";16" in str(each[3]) for each in getattr(image, "tile", ()))


def _extrema(image: Image.Image) -> tuple[tuple[int, int], ...]:
    found: Any = image.getextrema()
    return tuple(found)


def _in_srgb(image: Image.Image) -> tuple[Image.Image, str]:
    """Convert an image to 8-bit RGB with sRGB's colours, transparency on white; gives as well what
    happened to its colours.

    Colours without a profile are taken for sRGB's, and so are those whose profile cannot be read or
    is of other channels.
    """
    profile = image.info.get("icc_profile")
    if not profile:
        return _in_rgb(image), ""
    mode = "CMYK" if image.mode == "CMYK" else "RGB"
    transform, change = _transform(profile, mode)
    if transform is None:
        return _in_rgb(image), change
    if mode == "RGB":
        image = _in_rgb(image)
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None, "it is not converted in place"
    return converted, change


@lru_cache(maxsize=16)  # the photographs of a camera have one
def _transform(profile: bytes, mode: str) -> tuple[ImageCms.ImageCmsTransform | None, str]:
    """Return the conversion of a profile's colours to sRGB's, and what that is to a picture; None
    for sRGB itself and for one of other channels.
    """
    try:
        opened = ImageCms.ImageCmsProfile(BytesIO(profile))
        if opened.profile.xcolor_space.strip() != mode:
            return None, NO_PROFILE
        if "sRGB" in ImageCms.getProfileDescription(opened):
            return None, ""
        target = ImageCms.createProfile("sRGB")
        return ImageCms.buildTransform(opened, target, mode, "RGB"), CONVERTED
    except (ImageCms.PyCMSError, OSError):
        return None, NO_PROFILE


def _in_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to 8-bit RGB, transparency on white; one that is in RGB is returned
    itself.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise ValueError("numbers of 32 bits with a point, whose white is not known")
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow's own conversion clips at 255
        image = Image.fromarray(_high_bits(np.asarray(image)))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _high_bits(values: np.ndarray) -> np.ndarray:
    """Return the high 8 of 16 bits. Raises ValueError for numbers of more."""
    low = int(values.min())
    high = int(values.max())
    if low < 0 or high > WHITE_16:
        raise ValueError(f"values from {low:,} to {high:,}, and white is {WHITE_16:,} at most")
    return (values >> 8).astype(np.uint8)
