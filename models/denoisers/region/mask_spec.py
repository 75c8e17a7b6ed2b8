"""Which regions are imputed: the specs. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from denoisers.contract import Spec

MaskRatio = Annotated[float, Field(gt=0, le=1)]


class RandomMask(Spec):
    """Every region is masked by chance, independently of the others."""

    kind: Literal["random"] = "random"
    """By chance."""
    ratio: MaskRatio = 0.5
    """Chance of a region to be masked."""


class BedMask(Spec):
    """The regions that overlap intervals of a BED file are masked; windows without one are passed over."""

    kind: Literal["bed"] = "bed"
    """By coordinates."""
    path: Annotated[str, Field(min_length=1)]
    """BED file: chromosome, start (from 0), end (exclusive) by line, more columns allowed; plain text."""


SampledMask = Annotated[RandomMask | BedMask, Field(discriminator="kind")]
