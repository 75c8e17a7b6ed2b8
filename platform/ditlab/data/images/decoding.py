"""Decoding of a captioned image to pixels of a size of its aspect ratio (its bucket) and UTF-8
bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ditlab.data.images.captions import cut
from ditlab.data.images.pictures import (
    BROKEN,
    FORMATS,
    MAX_PIXELS,
    ImageSize,
    TooManyPixels,
    open_picture,
)
from ditlab.data.source_files import not_utf8
from ditlab.data.stores.receipt import NO_RECORD, DroppedRecord
from ditlab.errors import first_line

TOO_SMALL = "too small"
"""Reason of an image that no size takes."""
ASPECT_WEIGHT = 0.7
"""Weight of the aspect ratio's mismatch in an image's score; the rest is that of the area."""


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
    remarks: tuple[str, ...] = ()
    """Choices about it, as receipts count them: `SHARED`."""


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
    changes: tuple[str, ...] = ()
    """Changes that reading it made, as receipts count them."""
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
        fitted, changes = _fitted(item.image, rules)
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
        changes,
        item.label,
    )


def _fitted(
    content: bytes | Path, rules: DecodingRules
) -> tuple[Image.Image | ImageSize, tuple[str, ...]]:
    """Fit an image in sRGB, or its luma, to its bucket; gives its size where it has no bucket.

    Gives as well what was changed in reading it.
    """
    buckets = rules.buckets
    with open_picture(content, rules.max_pixels) as picture:
        height, width = picture.size
        size = buckets.choose(height, width)
        if size is None:
            return picture.size, ()
        scales = size.height / height, size.width / width
        scale = min(scales) if buckets.fit == "pad" else max(scales)
        if round(scale * min(height, width)) == 0:  # a line, of which padding would leave no pixel
            return picture.size, ()
        picture.draft(2 * scale)  # still twice as large as needed
        upright = picture.read()
        changes = picture.changes
    if rules.grey:
        upright = upright.convert("L")
    if buckets.fit == "pad":
        padded = ImageOps.pad(
            upright, (size.width, size.height), Image.Resampling.LANCZOS, color="white"
        )
        return padded, changes
    # the part of the image that the bucket shows: cropping here saves scaling the rest
    shown_width = min(upright.width, upright.height * size.width / size.height)
    shown_height = min(upright.height, upright.width * size.height / size.width)
    left = (upright.width - shown_width) / 2
    top = (upright.height - shown_height) / 2
    box = (left, top, left + shown_width, top + shown_height)
    shown = upright.resize((size.width, size.height), Image.Resampling.LANCZOS, box=box)
    return shown, changes
