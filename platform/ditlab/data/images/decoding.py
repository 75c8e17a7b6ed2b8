"""Decoding of a captioned image to pixels of a bucket's size and UTF-8 bytes.

The processes that decode import this module, which needs neither torch nor pyarrow.
"""

import struct
import warnings
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ditlab.data.images.aspect_buckets import AspectBuckets, ImageSize
from ditlab.data.images.captions import cut
from ditlab.data.text.documents import not_utf8
from ditlab.errors import UserError, first_line

FORMATS = ("BMP", "JPEG", "PNG", "WEBP")
"""Pillow's names of the formats that are read; others are not tried, as some start other programs."""
ORIENTATION = 0x0112
"""Orientation tag of EXIF; values 5 to 8 turn an image by a quarter."""
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""Errors of Pillow for files that are no images, damaged, or of more than 179 million pixels."""

Reason = Literal["missing_caption", "unreadable", "too_small"]


@dataclass(frozen=True)
class CaptionedImage:
    """Image and caption as a source has them."""

    name: str
    """Origin for people: a path below the source, a tar's member, a row of a file."""
    image: bytes | Path | None
    """Content of a file, or its path; None where the source has none."""
    caption: bytes | Path | None
    """UTF-8 text or the path of its file; None where the source has none."""


@dataclass(frozen=True)
class DecodingRules:
    """Target sizes and caption length of an import."""

    buckets: AspectBuckets
    caption_length: int
    """Most bytes of a caption."""


@dataclass(frozen=True)
class DecodedImage:
    """Image in its bucket's size, with its caption."""

    size: ImageSize
    pixels: np.ndarray
    """uint8 (3, height, width): red, green, blue."""
    caption: bytes
    """UTF-8, at least a byte."""
    caption_was_cut: bool


@dataclass(frozen=True)
class SkippedImage:
    """Image left out of a store."""

    name: str
    reason: Reason
    detail: str
    """Finding that led to it, for people."""


def decode(rules: DecodingRules, item: CaptionedImage) -> DecodedImage | SkippedImage:
    """Decode an image and its caption. Raises UserError for a caption that is not UTF-8 or cannot be read."""
    caption = _caption(item)
    if not caption:
        return SkippedImage(item.name, "missing_caption", "no caption" if item.caption is None else "an empty caption")
    if item.image is None:
        return SkippedImage(item.name, "unreadable", "no image there")
    try:
        with warnings.catch_warnings(action="ignore"):  # of large images and odd metadata: only errors matter
            fitted = _fitted(item.image, rules.buckets)
    except BROKEN as error:
        return SkippedImage(item.name, "unreadable", _problem(error, item))
    if isinstance(fitted, ImageSize):
        return SkippedImage(item.name, "too_small", f"{fitted.width}x{fitted.height} pixels")
    kept = cut(caption, rules.caption_length)
    pixels = np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1))
    return DecodedImage(ImageSize(*pixels.shape[1:]), pixels, kept, len(kept) < len(caption))


def _problem(error: Exception, item: CaptionedImage) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image"
    return first_line(error)


def _caption(item: CaptionedImage) -> bytes:
    """Return the caption without a byte order mark, NULs (which end a caption in its column) and space around it."""
    content, place = item.caption, f"the caption of {item.name}"
    if isinstance(content, Path):
        place = str(content)
        try:
            content = content.read_bytes()
        except OSError as error:
            raise UserError(f"{place} cannot be read ({error.strerror or error}); check the file.") from error
    try:
        text = (content or b"").decode()
    except UnicodeDecodeError as error:
        raise not_utf8(place, 0, error) from error
    return text.removeprefix("\ufeff").replace("\0", "").strip().encode()


def _fitted(content: bytes | Path, buckets: AspectBuckets) -> Image.Image | ImageSize:
    """Scale an image in RGB to cover its bucket, cropped around its centre; return its size where it has no bucket."""
    with Image.open(BytesIO(content) if isinstance(content, bytes) else content, formats=FORMATS) as image:
        turned = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
        width, height = image.size[::-1] if turned else image.size
        size = buckets.choose(height, width)
        if size is None:
            return ImageSize(height, width)
        scale = max(size.height / height, size.width / width)
        # a JPEG comes out at a half, a quarter or an eighth for a fraction of the time: still twice as large as needed
        image.draft(None, (round(2 * scale * image.width), round(2 * scale * image.height)))
        upright = in_rgb(ImageOps.exif_transpose(image))
    # the part of the image that the bucket shows: cropping here saves scaling the rest
    shown_width = min(upright.width, upright.height * size.width / size.height)
    shown_height = min(upright.height, upright.width * size.height / size.width)
    left, top = (upright.width - shown_width) / 2, (upright.height - shown_height) / 2
    box = (left, top, left + shown_width, top + shown_height)
    return upright.resize((size.width, size.height), Image.Resampling.LANCZOS, box=box)


def in_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to 8-bit RGB, transparency on white."""
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow's own conversion clips at 255
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
