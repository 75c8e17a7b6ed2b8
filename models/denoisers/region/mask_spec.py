"""Specs of the regions to impute: by chance, or by coordinates. Imports no torch."""

from __future__ import annotations

from math import comb
from typing import Annotated, Literal

from pydantic import Field

from denoisers.contract import Spec

MaskRatio = Annotated[float, Field(gt=0, le=1)]


class RandomMask(Spec):
    """A mask of every region with the same chance, independently of the others."""

    kind: Literal["random"] = "random"
    """A mask by chance."""
    ratio: MaskRatio = 0.5
    """Chance of a region to be masked."""


class BedMask(Spec):
    """A mask of the regions that overlap intervals of a BED file; windows without one are skipped."""

    kind: Literal["bed"] = "bed"
    """A mask by coordinates."""
    path: Annotated[str, Field(min_length=1)]
    """BED file: chromosome, start (from 0), end (exclusive) by line, more columns allowed; plain text."""


SampledMask = Annotated[RandomMask | BedMask, Field(discriminator="kind")]


def median_of_largest(num_regions: int, ratio: float, num_windows: int) -> int:
    """Return the median over batches of the largest number of masked regions that one of their windows has.

    Each is binomial: the smallest count q with P(X <= q)^num_windows >= 1/2.
    """
    below = 0.0
    for count in range(num_regions + 1):
        below += comb(num_regions, count) * ratio**count * (1 - ratio) ** (num_regions - count)
        if below**num_windows >= 0.5:
            return count
    return num_regions
