"""Specs of the regions to impute: by chance, or by coordinates. Imports no torch."""

from __future__ import annotations

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
