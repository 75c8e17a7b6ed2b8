"""Zarr stores of GET (Fu et al. 2025), formats 2 and 3: checked, and read a block of peaks at a time."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.data.genome.peak_names import Peaks, parse_peaks
from ditlab.data.genome.zarr_arrays import members, missing_files, open_array, open_group, read_array
from ditlab.errors import UserError
from ditlab.progress import Progress

BLOCK_BYTES = 8 * 2**20
"""Bytes of scores read at a time, unless one of the store's chunks is larger."""
MOST_MOTIFS = 100_000
NAMES_AT_A_TIME = 65_536
"""Names of peaks read at a time."""
KEYS = ("data", "peak_names", "motif_names")
"""Arrays that every store of GET has."""


@dataclass(frozen=True)
class GetZarrStore:
    """Open zarr store of GET."""

    path: Path
    group: Any
    """Group of zarr."""
    data: Any
    """Array of zarr with the scores, (peaks, motifs)."""
    motifs: tuple[str, ...]
    peaks: Peaks

    @property
    def format(self) -> int:
        """Format of zarr, 2 or 3."""
        return int(self.group.metadata.zarr_format)

    @property
    def cell_types(self) -> list[str]:
        """Cell types that have accessibilities."""
        folder = self.path / "atpm"
        return members(folder) if folder.is_dir() else []

    @property
    def missing_chunks(self) -> str:
        """Number of chunks (or shards) of `data` without a file, read as zeros: `3 chunks`; empty for none."""
        num = missing_files(self.path / "data", self.data)
        return f"{num:,} {'shards' if self.data.shards else 'chunks'}" if num else ""

    def atpm(self, cell_type: str) -> np.ndarray:
        """Read a cell type's accessibility of each peak, float64 (peaks,).

        Raises UserError for an unknown cell type, another number of peaks, and values that are no accessibilities.
        """
        if cell_type not in self.cell_types:
            raise UserError(f"--cell-type={cell_type}: {self.path} has no such cell type; {self._nearest(cell_type)}")
        array = open_array(self.path, self.group, f"atpm/{cell_type}")
        if array.dtype.kind not in "fiub":
            raise UserError(
                f"{self.path}: atpm/{cell_type} holds {array.dtype}, and accessibilities are real numbers; choose "
                "another cell type, or export it again."
            )
        if array.shape not in ((len(self.peaks),), (len(self.peaks), 1)):
            raise UserError(
                f"{self.path}: atpm/{cell_type} has shape {array.shape}, and data has {len(self.peaks):,} peaks; "
                "it needs one number a peak."
            )
        values = read_array(self.path, f"atpm/{cell_type}", array, slice(None)).reshape(-1).astype(np.float64)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            peak = int(np.argmax(bad))
            raise UserError(
                f"{self.path}: atpm/{cell_type} holds {values[peak]:g} for peak {self.peaks.name(peak)} (number "
                f"{peak:,} from 0); it needs finite numbers of 0 or more."
            )
        return values

    @property
    def block_rows(self) -> int:
        """Peaks read at a time: whole chunks, so that none is unpacked twice."""
        array = self.data
        chunk = (array.shards or array.chunks)[0]
        row_bytes = array.shape[1] * max(4, array.dtype.itemsize)
        return int(chunk * max(1, BLOCK_BYTES // (chunk * row_bytes)))

    def block(self, first: int) -> np.ndarray:
        """Read the scores of up to `block_rows` peaks from number `first`, float32 (peaks, motifs).

        Raises UserError for a chunk that cannot be read, and for scores that are negative, infinite or no numbers.
        """
        read = read_array(self.path, "data", self.data, slice(first, first + self.block_rows))
        with np.errstate(over="ignore"):  # beyond float32: infinite, and refused below
            values = read.astype(np.float32, copy=False)
        if not (values.min() >= 0 and values.max() < np.inf):  # NaN compares as false
            row, column = np.argwhere(~((values >= 0) & (values < np.inf)))[0]
            peak = first + int(row)
            raise UserError(
                f"{self.path}: data holds {read[row, column]} for motif {self.motifs[column]} of peak "
                f"{self.peaks.name(peak)} (number {peak:,} from 0); it needs finite numbers of 0 or more."
            )
        return values

    def blocks(self, what: str, progress: Progress) -> Iterator[tuple[int, np.ndarray]]:
        """Iterate over all scores in blocks, with the number of each block's first peak."""
        num = len(self.peaks)
        for first in range(0, num, self.block_rows):
            values = self.block(first)
            yield first, values
            progress(what, first + len(values), num, "peaks")

    def _nearest(self, cell_type: str) -> str:
        known = self.cell_types
        near = difflib.get_close_matches(cell_type, known, n=3, cutoff=0.4)
        if near:
            return f"did you mean {' or '.join(repr(name) for name in near)}?"
        return f"it has {listed(known)}." if known else "it has none at all; leave --cell-type out."


def open_get_zarr(path: Path, progress: Progress) -> GetZarrStore:
    """Open the GET store in a folder.

    Raises UserError where zarr is not installed, the folder is no zarr group, a key is missing or cannot be opened,
    sizes contradict each other, or a peak's name or position is wrong.
    """
    group = open_group(path)
    there = members(path)
    missing = [key for key in KEYS if key not in there]
    if missing:
        raise UserError(
            f"--source={path} holds no array '{missing[0]}' (it holds {listed(there) or 'nothing'}), "
            f"and GET's stores have {', '.join(KEYS)}; name the folder of such a store."
        )
    data, names, motif_names = (open_array(path, group, key) for key in KEYS)
    if data.ndim != 2 or data.dtype.kind not in "fiu" or 0 in data.shape:
        raise UserError(
            f"{path}: data has shape {data.shape} of {data.dtype}; it needs (peaks, motifs) of numbers, one of each at "
            "least."
        )
    if data.shape[1] > MOST_MOTIFS:
        raise UserError(
            f"{path}: data has {data.shape[1]:,} motifs, and at most {MOST_MOTIFS:,} are read; leave some out."
        )
    motifs = _motif_names(path, motif_names, data.shape[1])
    peaks = data.shape[0]
    if names.shape not in ((peaks,), (peaks, 1)):
        raise UserError(
            f"{path}: peak_names has shape {names.shape}, and data has {peaks:,} peaks; it needs a name a peak."
        )
    return GetZarrStore(path, group, data, motifs, parse_peaks(_names(path, names, progress), f"{path}: peak_names"))


def _motif_names(path: Path, array: Any, num: int) -> tuple[str, ...]:
    if not array.shape or array.size != num:
        raise UserError(
            f"{path}: motif_names has shape {array.shape}, and data has {num:,} motifs; it needs a name a motif."
        )
    values = read_array(path, "motif_names", array, slice(None)).reshape(-1).tolist()
    names = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in values)
    times = Counter(names)
    twice = next((name for name in names if times[name] > 1 or name == "accessibility"), None)
    if twice is not None:
        problem = "names a motif accessibility" if twice == "accessibility" else f"holds '{twice}' more than once"
        raise UserError(f"{path}: motif_names {problem}; each feature needs a name of its own, so rename it.")
    return names


def _names(path: Path, array: Any, progress: Progress) -> Iterator[Sequence[str | bytes]]:
    num = array.shape[0]
    for first in range(0, num, NAMES_AT_A_TIME):
        yield read_array(path, "peak_names", array, slice(first, first + NAMES_AT_A_TIME)).reshape(-1).tolist()
        progress("reading names", min(first + NAMES_AT_A_TIME, num), num, "peaks")


def listed(names: Iterable[str], most: int = 12) -> str:
    """Join names, `a, b, c`, or the first few and the number of the others."""
    names = list(names)
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"
