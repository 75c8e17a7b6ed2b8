"""Scores of the peaks of an import's block, read some chunks at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.runner import RefusedSource
from ditlab.data.genome.zarr_arrays import ZarrArray, open_array
from ditlab.data.genome.zarr_files import ZarrFiles

READ_BYTES = 8 * 2**20
"""Bytes of scores read at a time, unless one of the store's chunks is larger."""


@dataclass(frozen=True)
class ScoreReader:
    """Reader of scores of a GET store, without state: it travels to the processes that work on blocks."""

    source: str
    """Folder or URI as it was given, for messages."""
    motifs: tuple[str, ...]

    def open(self, block: InputBlock) -> "BlockScores":
        """Open the scores of a block, whose files are all that is read. Raises RefusedSource where that fails."""
        files = ZarrFiles.of_block(self.source, block)
        return BlockScores(files, open_array(files, "data"), self.motifs)


@dataclass(frozen=True)
class BlockScores:
    """Open scores, of which the files of a block are there."""

    files: ZarrFiles
    data: ZarrArray
    motifs: Sequence[str]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read the scores of peaks `start` to `stop`, float32 (peaks, motifs).

        Raises RefusedSource for a chunk that cannot be read, and for scores that are negative, infinite or no numbers;
        Unreachable as the place does.
        """
        found = self.data.read(slice(start, stop))
        with np.errstate(over="ignore"):  # beyond float32: infinite, and refused below
            values: np.ndarray = found.astype(np.float32, copy=False)
        if not (values.min() >= 0 and values.max() < np.inf):  # NaN compares as false
            row, column = np.argwhere(~((values >= 0) & (values < np.inf)))[0]
            raise RefusedSource(
                f"{self.files.source}: data holds {found[row, column]} for motif {self.motifs[column]} of peak "
                f"{self._name(start + int(row))} (number {start + int(row):,} from 0); it needs finite numbers of 0 or "
                "more."
            )
        return values

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """Iterate over the scores of peaks `start` to `stop`, some chunks at a time, with the number of the first."""
        while start < stop:
            end = self.end_of_part(start, stop)
            yield start, self.read(start, end)
            start = end

    def end_of_part(self, start: int, stop: int) -> int:
        """Return the end of the rows to be read together from `start` on: whole chunks, so that none is read twice."""
        chunk = self.data.chunk_rows
        row_bytes = self.data.shape[1] * max(4, self.data.dtype.itemsize)
        return min(stop, (start // chunk + max(1, READ_BYTES // (chunk * row_bytes))) * chunk)

    def _name(self, peak: int) -> str:
        names = open_array(self.files, "peak_names")
        name = names.read(slice(peak, peak + 1)).reshape(-1)[0]
        return name.decode() if isinstance(name, bytes) else str(name)


class KeptScores:
    """Scores of kept peaks over the divisors, read as windows need them."""

    def __init__(self, scores: BlockScores, rows: np.ndarray, divisors: np.ndarray):
        self._scores, self._rows, self._divisors = scores, rows, divisors
        self._stop = int(rows[-1]) + 1
        self._held = np.zeros((0, len(divisors)), np.float32)
        self._first = 0
        """Number, among the kept peaks, of the first in `_held`."""

    def between(self, first: int, stop: int) -> np.ndarray:
        """Return the scores of kept peaks `first` to `stop`, float32 (peaks, motifs); `first` must never decrease."""
        self._held = self._held[first - self._first :]
        self._first = first
        while self._first + len(self._held) < stop:
            self._held = np.concatenate([self._held, self._next_part(self._first + len(self._held))])
        return self._held[: stop - first]

    def _next_part(self, kept: int) -> np.ndarray:
        """Read the scores of the kept peaks from number `kept` to the end of its part."""
        begin = int(self._rows[kept])
        end = self._scores.end_of_part(begin, self._stop)
        rows = self._rows[kept : np.searchsorted(self._rows, end)]
        chosen = self._scores.read(begin, end)[rows - begin]
        return np.minimum(np.divide(chosen, self._divisors, out=chosen), 1, out=chosen)
