"""The zarr stores of GET (Fu et al. 2025), formats 2 and 3: checked, and read a block of peaks at a time."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.data.importing import Progress
from ditlab.data.peak_names import Peaks, parse_peaks
from ditlab.errors import UserError

BLOCK_BYTES = 8 * 2**20
"""Scores read at a time, unless one of the store's chunks is larger."""
NAMES_AT_A_TIME = 65_536
KEYS = ("data", "peak_names", "motif_names")


@dataclass(frozen=True)
class GetStore:
    path: Path
    group: Any
    """zarr's."""
    motifs: tuple[str, ...]
    peaks: Peaks

    @property
    def format(self) -> int:
        """Zarr's format, 2 or 3."""
        return int(self.group.metadata.zarr_format)

    @property
    def cell_types(self) -> list[str]:
        """Those that have accessibilities."""
        return sorted(self.group["atpm"].array_keys()) if "atpm" in set(self.group.group_keys()) else []

    @property
    def missing_chunks(self) -> int:
        """Chunks of `data` without a file: zarr reads them as zeros, whether they were left out or lost."""
        return int(self.group["data"].nchunks - self.group["data"].nchunks_initialized)

    def atpm(self, cell_type: str) -> np.ndarray:
        """A cell type's accessibility of each peak, float64 (peaks,).

        Raises UserError for an unknown cell type, another number of peaks, and values that are no accessibilities.
        """
        if cell_type not in self.cell_types:
            raise UserError(f"--cell-type={cell_type}: {self.path} has no such cell type; {self._nearest(cell_type)}")
        array = self.group["atpm"][cell_type]
        if array.shape not in ((len(self.peaks),), (len(self.peaks), 1)):
            raise UserError(
                f"{self.path}: atpm/{cell_type} has shape {array.shape}, and data has {len(self.peaks):,} peaks; "
                "it needs one number a peak."
            )
        values = self._read(f"atpm/{cell_type}", array, slice(None)).reshape(-1).astype(np.float64)
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
        """Peaks that are read at a time: whole chunks, so that none is unpacked twice."""
        array = self.group["data"]
        chunk = (array.shards or array.chunks)[0]
        row_bytes = array.shape[1] * max(4, array.dtype.itemsize)
        return int(chunk * max(1, BLOCK_BYTES // (chunk * row_bytes)))

    def block(self, first: int) -> np.ndarray:
        """The scores of up to `block_rows` peaks from number `first`, float32 (peaks, motifs).

        Raises UserError for a chunk that cannot be read, and for scores that are negative, infinite or no numbers.
        """
        read = self._read("data", self.group["data"], slice(first, first + self.block_rows))
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
        """All scores in turn, with the number of each block's first peak."""
        num = len(self.peaks)
        for first in range(0, num, self.block_rows):
            values = self.block(first)
            yield first, values
            progress(what, first + len(values), num, "peaks")

    def _read(self, key: str, array: Any, part: slice) -> np.ndarray:
        return _read(self.path, key, array, part)

    def _nearest(self, cell_type: str) -> str:
        known = self.cell_types
        near = difflib.get_close_matches(cell_type, known, n=3, cutoff=0.4)
        if near:
            return f"did you mean {' or '.join(repr(name) for name in near)}?"
        return f"it has {listed(known)}." if known else "it has none at all; leave --cell-type out."


def open_get_store(path: Path, progress: Progress) -> GetStore:
    """The GET store in a folder.

    Raises UserError where zarr is not installed, the folder is no zarr group, a key is missing, sizes contradict each
    other, or a peak's name or place is wrong.
    """
    group = _open_group(path)
    arrays = set(group.array_keys())
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise UserError(
            f"--source={path} holds no array '{missing[0]}' (it holds {listed(sorted(group.keys())) or 'nothing'}), "
            f"and GET's stores have {', '.join(KEYS)}; name the folder of such a store."
        )
    data, names = group["data"], group["peak_names"]
    if data.ndim != 2 or data.dtype.kind not in "fiu":
        raise UserError(f"{path}: data has shape {data.shape} of {data.dtype}; it needs (peaks, motifs) of numbers.")
    motifs = _motif_names(path, group["motif_names"], data.shape[1])
    peaks = data.shape[0]
    if names.shape not in ((peaks,), (peaks, 1)):
        raise UserError(
            f"{path}: peak_names has shape {names.shape}, and data has {peaks:,} peaks; it needs a name a peak."
        )
    return GetStore(path, group, motifs, parse_peaks(_names(path, names, progress), f"{path}: peak_names"))


def _open_group(path: Path) -> Any:
    try:
        import zarr
    except ImportError as error:
        raise UserError(
            "reading GET's stores needs zarr, which is not installed; `pip install 'ditlab[get]'` brings it."
        ) from error
    try:
        return zarr.open_group(path, mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:  # zarr's own errors are ValueErrors
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"--source={path} is no zarr store ({problem}); name the folder of one.") from error


def _motif_names(path: Path, array: Any, num: int) -> tuple[str, ...]:
    values = _read(path, "motif_names", array, slice(None)).reshape(-1).tolist()
    names = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in values)
    if len(names) != num:
        raise UserError(f"{path}: data has {num} motifs, and motif_names {len(names)}; they need to be as many.")
    twice = next((name for name in names if names.count(name) > 1 or name == "accessibility"), None)
    if twice is not None:
        problem = "names a motif accessibility" if twice == "accessibility" else f"holds '{twice}' more than once"
        raise UserError(f"{path}: motif_names {problem}; each feature needs a name of its own, so rename it.")
    return names


def _names(path: Path, array: Any, progress: Progress) -> Iterator[Sequence[str | bytes]]:
    num = array.shape[0]
    for first in range(0, num, NAMES_AT_A_TIME):
        yield _read(path, "peak_names", array, slice(first, first + NAMES_AT_A_TIME)).reshape(-1).tolist()
        progress("reading names", min(first + NAMES_AT_A_TIME, num), num, "peaks")


def _read(path: Path, key: str, array: Any, part: slice) -> np.ndarray:
    try:
        return np.asarray(array[part])
    except (RuntimeError, ValueError, OSError, TypeError) as error:  # what zarr and its codecs raise for damaged bytes
        rows = "" if part.start is None else f" from row {part.start:,}"
        raise UserError(f"{path}: {key} cannot be read{rows} ({error}); copy the store again.") from error


def listed(names: Iterable[str], most: int = 12) -> str:
    """`a, b, c`, or the first few and how many there are."""
    names = list(names)
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"
