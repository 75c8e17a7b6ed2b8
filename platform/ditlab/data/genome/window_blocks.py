"""Blocks of an import of GET's stores: runs of rows to measure, runs of windows to write."""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.plan import BlockNumbers, InputBlock, block_bytes
from ditlab.data.genome.get_zarr import GetZarrStore
from ditlab.data.genome.peak_names import Peaks
from ditlab.data.genome.region_windows import WindowPlan

CHUNKS_A_BLOCK = 8
"""Least chunks (along the peaks) that a block of windows covers: neighbours both read the one between them."""


@dataclass(frozen=True)
class KeptPeaks:
    """Peaks that are imported."""

    rows: np.ndarray
    """int64, ascending numbers of the peaks in the source."""
    accessibility: np.ndarray | None
    """float64 (kept,), above 0, to be divided by its largest in a window; None where it is 1 everywhere."""


@dataclass(frozen=True)
class WindowsOfBlock:
    """Windows of a block, and the kept peaks from their first to their last."""

    peaks: Peaks
    kept: KeptPeaks
    first: np.ndarray
    """int64 (windows,), number of each window's first peak among these."""
    size: np.ndarray
    """int64 (windows,), its peaks."""

    def plan(self, regions: int) -> WindowPlan:
        """Return the plan of these windows alone."""
        edges = np.searchsorted(self.peaks.chromosome, np.arange(len(self.peaks.chromosomes)))
        chromosome = self.peaks.chromosome[self.first].astype(np.int64)
        along = self.peaks.by_chromosome(np.arange(len(self.peaks)))
        return WindowPlan(along, regions, chromosome, self.first - edges[chromosome], self.size, 0)

    def pack(self) -> dict[str, Any]:
        """Return the arrays as values of JSON."""
        arrays = {
            "row": self.kept.rows,
            "chromosome": self.peaks.chromosome,
            "start": self.peaks.start,
            "end": self.peaks.end,
            "accessibility": self.kept.accessibility,
            "first": self.first,
            "size": self.size,
        }
        return {name: None if array is None else packed(array) for name, array in arrays.items()}

    @classmethod
    def unpack(cls, detail: dict[str, Any], chromosomes: tuple[str, ...]) -> "WindowsOfBlock":
        """Read what `pack` made."""
        row, start, end, first, size = (unpacked(detail[n], "int64") for n in ("row", "start", "end", "first", "size"))
        measured = detail["accessibility"]
        accessibility = None if measured is None else unpacked(measured, "float64")
        peaks = Peaks(chromosomes, unpacked(detail["chromosome"], "int32"), start, end)
        return cls(peaks, KeptPeaks(row, accessibility), first, size)


def packed(array: np.ndarray) -> str:
    """Return an array's bytes, little-endian, in base64."""
    return b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def unpacked(text: str, dtype: str) -> np.ndarray:
    """Read an array that `packed` made."""
    return np.frombuffer(b64decode(text), np.dtype(dtype).newbyteorder("<")).astype(dtype)


def score_blocks(source: GetZarrStore, rows: np.ndarray) -> Sequence[InputBlock]:
    """Cut a store into blocks of whole chunks, whose largest scores over the kept peaks `rows` are measured."""
    keep = np.zeros(len(source.peaks), bool)
    keep[rows] = True
    chunk, num, numbers = source.data.chunk_rows, len(source.peaks), BlockNumbers()
    most = block_bytes(sum(file.size for file in source.data.files.below("data")))
    files: list[SourceFile] = []
    start = size = 0
    for first in range(0, num, chunk):
        stop = min(first + chunk, num)
        more = list(source.data.chunk_files(first, stop))
        added = sum(file.size for file in more)
        if first > start and size + added > most:
            _add(numbers, source, files, start, first, packed(np.packbits(keep[start:first])))
            start, files, size = first, [], 0
        files, size = [*files, *more], size + added
    _add(numbers, source, files, start, num, packed(np.packbits(keep[start:])))
    return numbers.blocks


def kept_in_block(block: InputBlock) -> np.ndarray:
    """Return whether each peak of a block to measure is kept, bool (peaks,)."""
    assert block.stop is not None
    return np.unpackbits(unpacked(block.detail, "uint8"), count=block.stop - block.start).astype(bool)


def window_blocks(
    source: GetZarrStore, kept: KeptPeaks, plan: WindowPlan, row_bytes: int, rows_per_block: int
) -> Sequence[InputBlock]:
    """Cut a plan into blocks of whole blocks of the store, `rows_per_block` windows of `row_bytes` bytes each."""
    offsets = np.cumsum([0, *(len(along) for along in plan.peaks)])
    first = offsets[plan.chromosome] + plan.first
    windows = _windows_of_block(source, len(kept.rows), first, block_bytes(len(plan) * row_bytes) // row_bytes)
    windows = max(1, -(-windows // rows_per_block)) * rows_per_block
    numbers = BlockNumbers()
    for begin in range(0, len(plan), windows):
        part = slice(begin, begin + windows)
        low, high = int(first[begin]), int((first[part] + plan.size[part]).max())
        rows = kept.rows[low:high]
        along = Peaks(source.peaks.chromosomes, *(each[rows] for each in _coordinates(source.peaks)))
        measured = None if kept.accessibility is None else kept.accessibility[low:high]
        block = WindowsOfBlock(along, KeptPeaks(rows, measured), first[part] - low, plan.size[part])
        start, stop = int(rows[0]), int(rows[-1]) + 1
        _add(numbers, source, list(source.data.chunk_files(start, stop)), start, stop, block.pack())
    return numbers.blocks


def _coordinates(peaks: Peaks) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return peaks.chromosome, peaks.start, peaks.end


def _windows_of_block(source: GetZarrStore, num_kept: int, first: np.ndarray, wanted: int) -> int:
    """Return the windows of a block: `wanted`, and as many as cover some chunks."""
    step = max(1, (first[-1] - first[0]) / max(1, len(first) - 1))
    chunk = source.data.chunk_rows * num_kept / len(source.peaks)
    return max(wanted, int(CHUNKS_A_BLOCK * chunk / step))


def _add(
    numbers: BlockNumbers, source: GetZarrStore, files: Sequence[SourceFile], start: int, stop: int, detail: Any
) -> None:
    """Add a block of rows of the store, which may read names of these rows as well."""
    names = source.names.chunk_files(start, stop)
    beside = (*source.data.metadata_files, *source.names.metadata_files, *names)
    numbers.add(files, start=start, stop=stop, beside=beside, detail=detail)
