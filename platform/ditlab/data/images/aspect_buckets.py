"""Aspect-ratio buckets: the sizes of a set's images, and the size of each image."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

ASPECT_WEIGHT = 0.7
"""Weight of the aspect ratio's mismatch in an image's score; the rest is that of the area."""


class ImageSize(NamedTuple):
    """Size of an image, in pixels."""

    height: int
    width: int


class BucketScore(NamedTuple):
    """Mismatch of a bucket with an image: see `AspectBuckets`."""

    cropped: float
    """Share of the image that is cut off, in [0, 1)."""
    shortfall: float
    """Share of the largest area that the bucket does not have, in [0, 1)."""

    @property
    def total(self) -> float:
        """Weighted sum of both terms; the bucket with the least is chosen."""
        return ASPECT_WEIGHT * self.cropped + (1 - ASPECT_WEIGHT) * self.shortfall


@dataclass(frozen=True)
class AspectBuckets:
    """Sizes (H, W) with sides that are multiples of `step` from `min_side` to `max_side`, and H W <= `resolution`^2.

    An image of h x w pixels goes to one of the sizes with H <= h and W <= w, so that nothing is ever enlarged: small
    images have the small sizes, and one smaller than the smallest has none. Of these it takes the size with
    the least score,

        score = 0.7 (1 - exp(-|ln(w/h) - ln(W/H)|)) + 0.3 (1 - H W / resolution^2).

    The first term is the mismatch of the logarithms of the aspect ratios, brought into [0, 1): it is the share of the
    image that falls off when it is scaled to cover the size and cropped. The second is the shortfall in area, in
    [0, 1) as well. Of two sizes with one score an image takes the larger, then the one that is less high.
    """

    resolution: int
    step: int
    min_side: int
    max_side: int

    @cached_property
    def sizes(self) -> tuple[ImageSize, ...]:
        """Sizes that images can have, by height and then width; none where even the smallest has too large an area."""
        first = -(-self.min_side // self.step) * self.step
        sides = range(first, self.max_side + 1, self.step)
        return tuple(
            ImageSize(height, width) for height in sides for width in sides if height * width <= self.resolution**2
        )

    def choose(self, height: int, width: int) -> ImageSize | None:
        """Return the size for an image; None where it is smaller than every size."""
        return _choose(self, height, width)

    def best(self, height: int, width: int) -> ImageSize | None:
        """Compare all sizes; `choose` remembers the answers."""
        fitting = (size for size in self.sizes if size.height <= height and size.width <= width)
        return min(fitting, default=None, key=lambda size: self._preference(ImageSize(height, width), size))

    def score(self, image: ImageSize, bucket: ImageSize) -> BucketScore:
        """Return the mismatch of a bucket with an image."""
        mismatch = math.log(image.width / image.height) - math.log(bucket.width / bucket.height)
        return BucketScore(1 - math.exp(-abs(mismatch)), 1 - bucket.height * bucket.width / self.resolution**2)

    def _preference(self, image: ImageSize, bucket: ImageSize) -> tuple[float, int, int]:
        # rounded, so that sizes of equal score compare equal whatever the last bit of a logarithm is
        return round(self.score(image, bucket).total, 12), -bucket.height * bucket.width, bucket.height


@lru_cache(maxsize=65536)
def _choose(buckets: AspectBuckets, height: int, width: int) -> ImageSize | None:
    return buckets.best(height, width)
