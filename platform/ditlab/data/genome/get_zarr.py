"""Zarr stores of GET (Fu et al. 2025), formats 2 and 3: checked, their names and accessibilities read."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.genome.peak_names import Peaks, parse_peaks
from ditlab.data.genome.zarr_arrays import ZarrArray, open_array, open_group
from ditlab.data.genome.zarr_files import ZarrFiles, list_zarr
from ditlab.errors import UserError
from ditlab.progress import Progress

MOST_MOTIFS = 100_000
NAMES_AT_A_TIME = 65_536
"""Names of peaks read at a time."""
KEYS = ("data", "peak_names", "motif_names")
"""Arrays that every store of GET has."""


@dataclass(frozen=True)
class GetZarrStore:
    """Open zarr store of GET."""

    files: ZarrFiles
    format: int
    """Format of zarr, 2 or 3."""
    data: ZarrArray
    """Scores, (peaks, motifs)."""
    names: ZarrArray
    """Names of the peaks."""
    motifs: tuple[str, ...]
    peaks: Peaks

    @property
    def source(self) -> str:
        """Folder or URI as it was given."""
        return self.files.source

    @property
    def cell_types(self) -> list[str]:
        """Cell types that have accessibilities."""
        return self.files.members("atpm")

    def atpm(self, cell_type: str) -> np.ndarray:
        """Read a cell type's accessibility of each peak, float64 (peaks,).

        Raises UserError for an unknown cell type, another number of peaks, and values that are no accessibilities.
        """
        if cell_type not in self.cell_types:
            raise UserError(f"--cell-type={cell_type}: {self.source} has no such cell type; {self._nearest(cell_type)}")
        array = open_array(self.files, f"atpm/{cell_type}")
        if array.dtype.kind not in "fiub":
            raise UserError(
                f"{self.source}: atpm/{cell_type} holds {array.dtype}, and accessibilities are real numbers; choose "
                "another cell type, or export it again."
            )
        if array.shape not in ((len(self.peaks),), (len(self.peaks), 1)):
            raise UserError(
                f"{self.source}: atpm/{cell_type} has shape {array.shape}, and data has {len(self.peaks):,} peaks; "
                "it needs one number a peak."
            )
        values = array.read().reshape(-1).astype(np.float64)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            peak = int(np.argmax(bad))
            raise UserError(
                f"{self.source}: atpm/{cell_type} holds {values[peak]:g} for peak {self.peaks.name(peak)} (number "
                f"{peak:,} from 0); it needs finite numbers of 0 or more."
            )
        return values

    def _nearest(self, cell_type: str) -> str:
        known = self.cell_types
        near = difflib.get_close_matches(cell_type, known, n=3, cutoff=0.4)
        if near:
            return f"did you mean {' or '.join(repr(name) for name in near)}?"
        return f"it has {listed(known)}." if known else "it has none at all; leave --cell-type out."


def open_get_zarr(source: str, progress: Progress) -> GetZarrStore:
    """Open the GET store in a folder, or below a URI.

    Raises UserError where zarr is not installed, the folder is no zarr group, a key is missing or cannot be opened,
    sizes contradict each other, or a peak's name or position is wrong.
    """
    files = list_zarr(source)
    group = open_group(files)
    there = files.members()
    missing = [key for key in KEYS if key not in there]
    if missing:
        raise UserError(
            f"--source={source} holds no array '{missing[0]}' (it holds {listed(there) or 'nothing'}), "
            f"and GET's stores have {', '.join(KEYS)}; name the folder of such a store."
        )
    data, names, motif_names = (open_array(files, key) for key in KEYS)
    if len(data.shape) != 2 or data.dtype.kind not in "fiu" or 0 in data.shape:
        raise UserError(
            f"{source}: data has shape {data.shape} of {data.dtype}; it needs (peaks, motifs) of numbers, one of each "
            "at least."
        )
    num_peaks, num_motifs = data.shape
    if num_motifs > MOST_MOTIFS:
        raise UserError(
            f"{source}: data has {num_motifs:,} motifs, and at most {MOST_MOTIFS:,} are read; leave some out."
        )
    motifs = _motif_names(motif_names, num_motifs)
    if names.shape not in ((num_peaks,), (num_peaks, 1)):
        raise UserError(
            f"{source}: peak_names has shape {names.shape}, and data has {num_peaks:,} peaks; it needs a name a peak."
        )
    peaks = parse_peaks(_names(names, progress), f"{source}: peak_names")
    return GetZarrStore(files, int(group.metadata.zarr_format), data, names, motifs, peaks)


def _motif_names(array: ZarrArray, num: int) -> tuple[str, ...]:
    source = array.files.source
    if not array.shape or array.array.size != num:
        raise UserError(
            f"{source}: motif_names has shape {array.shape}, and data has {num:,} motifs; it needs a name a motif."
        )
    values = array.read().reshape(-1).tolist()
    names = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in values)
    times = Counter(names)
    twice = next((name for name in names if times[name] > 1 or name == "accessibility"), None)
    if twice is not None:
        problem = "names a motif accessibility" if twice == "accessibility" else f"holds '{twice}' more than once"
        raise UserError(f"{source}: motif_names {problem}; each feature needs a name of its own, so rename it.")
    return names


def _names(array: ZarrArray, progress: Progress) -> Iterator[Sequence[str | bytes]]:
    num = array.shape[0]
    for first in range(0, num, NAMES_AT_A_TIME):
        yield array.read(slice(first, first + NAMES_AT_A_TIME)).reshape(-1).tolist()
        progress("reading names", min(first + NAMES_AT_A_TIME, num), num, "peaks")


def listed(names: Iterable[str], most: int = 12) -> str:
    """Join names, `a, b, c`, or the first few and the number of the others."""
    names = list(names)
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"
