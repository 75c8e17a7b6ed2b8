"""What can be asked of each importer of `ditlab data import`: the flags of its command, in the order that they have."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from denoisers.contract import Spec


class DigitsOptions(Spec):
    """The 1,797 real 8x8 digits that scikit-learn carries. Needs no download."""


class MnistOptions(Spec):
    """MNIST, from its four idx files or by download.

    With --source: the files gzipped or not, either split alone too. Data sets that share MNIST's format, such as
    Fashion-MNIST, need --no-checksum.
    """

    source: Path | None = None
    """Folder that holds the idx files; without it they are downloaded."""
    checksum: bool = True
    """Refuse files whose MD5 is not the published one."""


class GetOptions(Spec):
    """Motif scores of genomic regions, GET's zarr stores.

    Zarr formats 2 and 3. Each motif is divided by its largest score, and accessibility is the last feature. A sample
    is a window of consecutive peaks of one chromosome.
    """

    source: Path
    """Folder of the zarr store."""
    cell_type: Annotated[str, Field(min_length=1)] | None = None
    """Cell type whose accessibility (atpm) to take; its peaks of zero atpm are dropped. Without it all peaks stay and
    accessibility is 1 everywhere."""
    accessibility: Literal["atpm", "ones"] | None = None
    """The last feature: atpm over the window's largest (the default with a cell type), or ones."""
    regions: Annotated[int, Field(ge=1)] = 900
    """Peaks of a window."""
    stride: Annotated[int, Field(ge=1)] | None = None
    """Peaks from a window's first to the next window's [default: as many as a window has, so none overlap]."""
    max_span: Annotated[int, Field(ge=1)] = 5_000_000
    """Base pairs that a window may reach over; longer ones are dropped."""
    name: str | None = None
    """Name of the store and its folder [default: get-CELL_TYPE, or get]."""

    @field_validator("name")
    @classmethod
    def _a_folders_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
            raise ValueError("is no plain folder name; use letters, digits, '.', '_' and '-', and --out for the place.")
        return name
