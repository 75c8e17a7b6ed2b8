"""Rules by which blocks of a GET store become largest scores by motif, and shards of windows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.receipt import BlockReceipt
from ditlab.data.genome.block_scores import KeptScores, ScoreReader
from ditlab.data.genome.region_windows import PEAK_COLUMN, PEAK_NAME, region_columns, window_batches
from ditlab.data.genome.window_blocks import WindowsOfBlock, kept_in_block, packed
from ditlab.data.stores.manifest import Column

LARGEST = "largest scores"
"""Key of a receipt's detail: the largest score of each motif over the block's kept peaks, float32, in base64."""


@dataclass(frozen=True)
class LargestScoreRules:
    """Rules that measure each motif's largest score over the kept peaks of a block. They write no shards."""

    reader: ScoreReader

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Read a block's scores. Raises as `BlockScores.read` does."""
        assert block.stop is not None
        scores, keep = self.reader.open(block), kept_in_block(block)
        largest = np.zeros(len(self.reader.motifs), np.float32)
        for first, values in scores.parts(block.start, block.stop):
            chosen = values[keep[first - block.start : first - block.start + len(values)]]
            np.maximum(largest, chosen.max(axis=0, initial=0), out=largest)
        return BlockReceipt(
            block=block.number, rows=block.stop - block.start, parts={}, detail={LARGEST: packed(largest)}
        )


@dataclass(frozen=True)
class WindowRules:
    """Rules that write the windows of a block."""

    reader: ScoreReader
    chromosomes: tuple[str, ...]
    """Names of all chromosomes."""
    regions: int
    """Most peaks of a window."""
    divisors: tuple[float, ...]
    """Divisor of each motif."""
    is_measured: bool
    """True where the last feature is a measured accessibility."""
    rows_per_block: int
    """Rows of a block of the store."""

    @property
    def columns(self) -> dict[str, Column]:
        """Columns of the store."""
        features = (*self.reader.motifs, "accessibility")
        columns = region_columns(self.regions, features, (*self.divisors, 1.0), self.chromosomes)
        return columns | ({PEAK_NAME: PEAK_COLUMN} if self.is_measured else {})

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Write a block's windows, in their order. Raises as `BlockScores.read` does, and OSError as the disk."""
        from ditlab.data.stores.shards import write_shards

        windows = WindowsOfBlock.unpack(block.detail, self.chromosomes)
        shards = write_shards(
            folder, block.prefix, self.columns, self._batches(block, windows), rows_per_block=self.rows_per_block
        )
        return BlockReceipt(block=block.number, rows=len(windows.first), parts={".": tuple(shards)})

    def _batches(self, block: InputBlock, windows: WindowsOfBlock) -> Iterator[dict[str, np.ndarray]]:
        scores = KeptScores(self.reader.open(block), windows.kept.rows, np.array(self.divisors, np.float32))
        accessibility = windows.kept.accessibility
        plan = windows.plan(self.regions)
        offsets = np.cumsum([0, *(len(along) for along in plan.peaks)])
        largest: list[float] = []
        """Largest accessibilities of the windows of the current batch."""

        def features(chromosome: int, first: int, stop: int) -> np.ndarray:
            begin, end = int(offsets[chromosome]) + first, int(offsets[chromosome]) + stop
            values = np.ones((stop - first, len(self.divisors) + 1), np.float32)
            values[:, :-1] = scores.between(begin, end)
            if accessibility is not None:
                largest.append(accessibility[begin:end].max())
                values[:, -1] = accessibility[begin:end] / largest[-1]
            return values

        for batch in window_batches(plan, len(self.divisors) + 1, features):
            if accessibility is not None:
                batch[PEAK_NAME] = np.array(largest)
                largest.clear()
            yield batch
