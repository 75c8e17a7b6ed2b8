"""Options of `ditlab data import get`."""

from typing import Annotated, Literal

from pydantic import Field

from ditlab.spec.importing import FolderName, SourcePlace
from ditlab_models.contract import Spec


class GetOptions(Spec):
    """Motif scores of genomic regions, GET's zarr stores.

    Zarr formats 2 and 3. Each motif is divided by its largest score, and accessibility is the last
    feature. A sample is a window of consecutive peaks of one chromosome. A killed import goes on
    from its whole blocks when the same command is given again.
    """

    source: SourcePlace
    """Folder of the zarr store, or a URI of one (s3://bucket/pbmc.zarr)."""
    cell_type: Annotated[str, Field(min_length=1)] | None = None
    """Cell type whose accessibility (atpm) to take; its peaks of zero atpm are dropped. Without it
    all peaks stay and accessibility is 1 everywhere."""
    accessibility: Literal["atpm", "ones"] | None = None
    """The last feature: atpm over the window's largest (the default with a cell type), or ones."""
    regions: Annotated[int, Field(ge=1)] = 900
    """Peaks of a window."""
    stride: Annotated[int, Field(ge=1)] | None = None
    """Peaks from a window's first to the next window's [default: as many as a window has, so none
    overlap].
    """
    max_span: Annotated[int, Field(ge=1)] = 5_000_000
    """Base pairs that a window may reach over; longer ones are dropped."""
    keep_duplicates: bool = False
    """Let windows of equal features lie on both sides of a split; else all of them train, or all
    are held out. They are counted and stored in both cases.
    """
    processes: Annotated[int, Field(ge=1)] | None = None
    """Processes that read; the store is the same for any number [default: the cores, fewer for a
    small source].
    """
    name: FolderName | None = None
    """Name of the store and its folder [default: get-CELL_TYPE, or get]."""

    @property
    def takes_atpm(self) -> bool:
        """True if the last feature is a cell type's atpm."""
        return self.cell_type is not None and self.accessibility != "ones"
