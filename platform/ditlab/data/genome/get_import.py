"""Import of a GET store by blocks: largest scores of the motifs, then windows of peaks."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.data.block_imports.plan import BlockReceipt, ImportPlan, InputBlock, block_bytes
from ditlab.data.block_imports.runner import (
    ProcessExecutor,
    RefusedSource,
    finish_import,
    refuse_bucketed_store,
    run_blocks,
    unfinished_import,
)
from ditlab.data.block_imports.source_files import SourceFile, source_name, visible_name
from ditlab.data.genome.get_zarr import GetZarrStore, Peaks, listed, open_get_zarr
from ditlab.data.genome.region_windows import (
    PEAK_COLUMN,
    PEAK_NAME,
    WHOLE_CHROMOSOMES,
    WindowPlan,
    plan_windows,
    region_columns,
    window_batches,
)
from ditlab.data.genome.zarr_arrays import ZarrArray, ZarrFiles, open_array
from ditlab.data.importing import ImportRequest
from ditlab.data.processes import fitting_processes
from ditlab.data.stores.block_index import WHOLE_BYTES, block_rows
from ditlab.data.stores.manifest import Column, Source, folder_name
from ditlab.data.stores.writer import write_shards
from ditlab.data.stores.writing import LeftOutRecords, WrittenStore
from ditlab.errors import UserError
from ditlab.spec.importing import GetOptions

IRRELEVANT = {"source", "processes", "name"}
"""Options that do not change a store; the source enters by its listing."""
QUICKER = 16
"""Factor by which scores take less time a byte of input than images, so that more of them make a process worth it."""
CHUNKS_A_BLOCK = 8
"""Least chunks (along the peaks) that a block of windows covers: neighbours both read the one between them."""
READ_BYTES = 8 * 2**20
"""Bytes of scores read at a time, unless one of the store's chunks is larger."""
LARGEST = "largest scores"
"""Key of a receipt's detail: the largest score of each motif over the block's kept peaks, float32, in base64."""


def import_get(request: ImportRequest[GetOptions]) -> WrittenStore:
    """Write one store of windows: see `region_windows.region_columns`; the last feature is accessibility.

    The names of the peaks and a cell type's accessibilities decide the windows. The scores are read twice, block by
    block, first for each motif's largest over the kept peaks, then for the windows: rows and their order depend on the
    source and the options alone. A killed import goes on from its whole blocks. Memory holds some chunks of scores and
    windows in each process, and about 120 bytes a peak in this one. Raises UserError for a damaged source, and where
    every window is dropped.
    """
    options = request.options
    if options.accessibility == "atpm" and options.cell_type is None:
        raise UserError("--accessibility=atpm needs a cell type; give --cell-type, or leave --accessibility out.")
    default_name = "get" if options.cell_type is None else f"get-{folder_name(options.cell_type)}"
    path = request.out / (options.name or default_name)
    refuse_bucketed_store(path)
    chosen = _choose(open_get_zarr(options.source, request.progress), options)
    origin = ScoreSource(options.source, chosen.source.motifs)
    described = options.model_dump(mode="json", exclude=IRRELEVANT)
    to_measure = score_blocks(chosen.source, chosen.kept.rows)
    fitting = fitting_processes(sum(block.bytes for block in to_measure) // QUICKER)
    executor = request.executor or ProcessExecutor(options.processes or fitting, "reads scores")
    measuring = ImportPlan.of("get scores", to_measure, described, len(chosen.source.peaks))
    measured = measuring.folder(path)
    with unfinished_import(measured):
        measure = LargestScoreRules(origin)
        found = run_blocks(
            measuring, measure, measured, executor, request.progress, "reading the largest scores", "peaks"
        )
        rules = _window_rules(origin, chosen, _divisors(found))
        row_bytes = sum(column.row_bytes for column in rules.columns.values())
        blocks = window_blocks(chosen.source, chosen.kept, chosen.plan, row_bytes, rules.rows_per_block)
        writing = ImportPlan.of("get", blocks, {**described, "divisors": rules.divisors}, len(chosen.plan))
        folder = writing.folder(path)
        with unfinished_import(folder):
            receipts = run_blocks(writing, rules, folder, executor, request.progress, "writing", "windows")
            return _finish(path, folder, receipts, rules, chosen)


@dataclass(frozen=True)
class ChosenWindows:
    """Peaks and windows of a source that an import's options choose."""

    source: GetZarrStore
    options: GetOptions
    kept: KeptPeaks
    plan: WindowPlan

    @property
    def left_out(self) -> list[LeftOutRecords]:
        """Peaks and windows that are not in the store, and chunks that are not in the source."""
        peaks, plan = self.source.peaks, self.plan
        rows, num = self.kept.rows, len(self.source.peaks)
        first = int(np.searchsorted(rows - np.arange(len(rows)), 0, side="right"))  # of those that are left out
        closed = LeftOutRecords("peaks of zero atpm", num - len(rows), num, peaks.name(first) if first < num else "")
        return [
            closed,
            LeftOutRecords(
                f"windows over {self.options.max_span:,} base pairs", plan.dropped, plan.dropped + len(plan)
            ),
            LeftOutRecords(
                f"{self.source.data.kind_of_files} without a file, read as zeros",
                self.source.data.num_missing,
                self.source.data.num_files,
            ),
        ]

    @property
    def note(self) -> str:
        """Origin of the store, for people."""
        source, options, num, plan = self.source, self.options, len(self.source.peaks), self.plan
        parts = [f"read from {visible_name(source_name(options.source))} (zarr format {source.format})"]
        if options.cell_type is None:
            known = listed(source.cell_types)
            parts.append(f"accessibility is 1 everywhere; cell types for --cell-type: {known or 'none'}")
        else:
            dropped = num - len(self.kept)
            parts.append(f"{dropped:,} of {num:,} peaks dropped (zero atpm in {options.cell_type})")
        windows = f"{plan.dropped:,} of {plan.dropped + len(plan):,} windows"
        parts.append(f"{windows} dropped (over {options.max_span:,} base pairs)")
        if options.stride is not None and options.stride < options.regions:
            parts.append(f"neighbouring windows share regions: {WHOLE_CHROMOSOMES}")
        if source.data.num_missing:
            kind = source.data.kind_of_files
            parts.append(f"{source.data.num_missing:,} {kind} of data have no file and were read as zeros")
        return "; ".join(parts)


def _choose(source: GetZarrStore, options: GetOptions) -> ChosenWindows:
    """Choose peaks and cut windows. Raises UserError where no peak, or no window, is left."""
    rows, atpm = np.arange(len(source.peaks)), None
    if options.cell_type is not None:
        atpm = source.atpm(options.cell_type)
        rows = np.flatnonzero(atpm)
        if not len(rows):
            raise UserError(
                f"--cell-type={options.cell_type}: all {len(atpm):,} peaks of {options.source} have an atpm of zero in "
                "it, so none is left; choose another cell type."
            )
        atpm = None if options.accessibility == "ones" else atpm[rows]
    kept = KeptPeaks.of(source.peaks, rows, atpm)
    plan = plan_windows(kept.peaks.by_chromosome(), options.regions, options.stride, options.max_span)
    if not len(plan):
        raise UserError(
            f"--max-span={options.max_span} drops all {plan.dropped:,} windows of --regions={options.regions} over "
            f"{len(kept):,} peaks of {options.source}; raise --max-span, or lower --regions."
        )
    return ChosenWindows(source, options, kept, plan)


def _divisors(receipts: Sequence[BlockReceipt]) -> tuple[float, ...]:
    """Return each motif's largest score over all blocks; 1 for a motif that is always zero."""
    largest = np.max([unpacked(receipt.detail[LARGEST], "float32") for receipt in receipts], axis=0)
    return tuple(np.where(largest > 0, largest, np.float32(1)).tolist())


def _window_rules(origin: ScoreSource, chosen: ChosenWindows, divisors: tuple[float, ...]) -> WindowRules:
    """Return the rules. A store of up to WHOLE_BYTES is one block, so that it is read at once."""
    is_measured = chosen.kept.accessibility is not None
    rules = WindowRules(origin, chosen.source.peaks.chromosomes, chosen.options.regions, divisors, is_measured, 0)
    row_bytes = sum(column.row_bytes for column in rules.columns.values())
    num = len(chosen.plan)
    return replace(rules, rows_per_block=num if num * row_bytes <= WHOLE_BYTES else block_rows(row_bytes))


def _finish(
    path: Path, folder: Path, receipts: Sequence[BlockReceipt], rules: WindowRules, chosen: ChosenWindows
) -> WrittenStore:
    cell_type, motifs = chosen.options.cell_type, len(rules.origin.motifs)
    of_cells = f", cell type {cell_type}" if cell_type else ""
    return finish_import(
        path,
        folder,
        receipts,
        rules.columns,
        description=f"windows of {rules.regions} peaks, {motifs} motifs and accessibility{of_cells}",
        source=Source(
            kind="get",
            citation="X. Fu et al., A foundation model of transcription across human cell types, Nature (2025)",
            license="not stated in the zarr store",
            note=chosen.note,
        ),
        left_out=chosen.left_out,
    )


@dataclass(frozen=True)
class KeptPeaks:
    """Peaks that are imported."""

    peaks: Peaks
    rows: np.ndarray
    """int64, ascending numbers of the peaks in the source."""
    accessibility: np.ndarray | None
    """float64 (kept,), above 0, to be divided by its largest in a window; None where it is 1 everywhere."""

    @classmethod
    def of(cls, peaks: Peaks, rows: np.ndarray, accessibility: np.ndarray | None) -> KeptPeaks:
        """Keep the peaks with numbers `rows`; `accessibility` is that of each of them."""
        return cls(
            Peaks(peaks.chromosomes, peaks.chromosome[rows], peaks.start[rows], peaks.end[rows]), rows, accessibility
        )

    def __len__(self) -> int:
        return len(self.rows)

    def pack(self, low: int, high: int) -> dict[str, Any]:
        """Return kept peaks `low` to `high` as values of JSON."""
        peaks, part = self.peaks, slice(low, high)
        arrays = {"row": self.rows, "chromosome": peaks.chromosome, "start": peaks.start, "end": peaks.end}
        measured = {} if self.accessibility is None else {"accessibility": self.accessibility}
        return {name: packed(array[part]) for name, array in (arrays | measured).items()}

    @classmethod
    def unpack(cls, detail: Mapping[str, Any], chromosomes: tuple[str, ...]) -> KeptPeaks:
        """Read what `pack` made."""
        row, start, end = (unpacked(detail[name], "int64") for name in ("row", "start", "end"))
        measured = detail.get("accessibility")
        peaks = Peaks(chromosomes, unpacked(detail["chromosome"], "int32"), start, end)
        return cls(peaks, row, None if measured is None else unpacked(measured, "float64"))


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
    chunk, num = source.data.chunk_rows, len(source.peaks)
    most = block_bytes(sum(file.size for file in source.data.files.below("data")))
    blocks: list[InputBlock] = []
    files: list[SourceFile] = []
    start = size = 0
    for first in range(0, num, chunk):
        more = list(source.data.chunk_files(first, min(first + chunk, num)))
        added = sum(file.size for file in more)
        if first > start and size + added > most:
            blocks.append(_block(len(blocks), source, files, start, first, packed(np.packbits(keep[start:first]))))
            start, files, size = first, [], 0
        files, size = [*files, *more], size + added
    return [*blocks, _block(len(blocks), source, files, start, num, packed(np.packbits(keep[start:])))]


def window_blocks(
    source: GetZarrStore, kept: KeptPeaks, plan: WindowPlan, row_bytes: int, rows_per_block: int
) -> Sequence[InputBlock]:
    """Cut a plan into blocks of whole blocks of the store, `rows_per_block` windows of `row_bytes` bytes each.

    A block has about `block_bytes`, and at least as many windows as cover some chunks.
    """
    offsets = np.cumsum([0, *(len(along) for along in plan.peaks)])
    first = offsets[plan.chromosome] + plan.first
    step = max(1, (first[-1] - first[0]) / max(1, len(first) - 1))
    chunk = source.data.chunk_rows * len(kept) / len(source.peaks)
    windows = max(block_bytes(len(plan) * row_bytes) // row_bytes, int(CHUNKS_A_BLOCK * chunk / step))
    windows = max(1, -(-windows // rows_per_block)) * rows_per_block
    blocks: list[InputBlock] = []
    for begin in range(0, len(plan), windows):
        part = slice(begin, begin + windows)
        low, high = int(first[begin]), int((first[part] + plan.size[part]).max())
        start, stop = int(kept.rows[low]), int(kept.rows[high - 1]) + 1
        detail = kept.pack(low, high) | {"first": packed(first[part] - low), "size": packed(plan.size[part])}
        files = list(source.data.chunk_files(start, stop))
        blocks.append(_block(len(blocks), source, files, start, stop, detail))
    return blocks


def _block(
    number: int, source: GetZarrStore, files: Sequence[SourceFile], start: int, stop: int, detail: Any
) -> InputBlock:
    """Make a block of rows of the store, which may read names of these rows as well."""
    names = source.names.chunk_files(start, stop)
    beside = (*source.data.metadata_files, *source.names.metadata_files, *names)
    return InputBlock(number, tuple(files), start=start, stop=stop, beside=beside, detail=detail)


@dataclass(frozen=True)
class ScoreSource:
    """Origin of scores; it travels to the processes that work on blocks."""

    source: str
    """Folder or URI as it was given, for messages."""
    motifs: tuple[str, ...]


@dataclass(frozen=True)
class BlockScores:
    """Open scores, of which the files of a block are there."""

    files: ZarrFiles
    data: ZarrArray
    motifs: Sequence[str]

    @classmethod
    def open(cls, origin: ScoreSource, block: InputBlock) -> BlockScores:
        """Open the scores of a block, whose files are all that is read. Raises RefusedSource where that fails."""
        files = ZarrFiles.of_block(origin.source, block)
        return cls(files, open_array(files, "data"), origin.motifs)

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


@dataclass(frozen=True)
class LargestScoreRules:
    """Rules that measure each motif's largest score over the kept peaks of a block. They write no shards."""

    origin: ScoreSource

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Read a block's scores. Raises as `BlockScores.read` does."""
        assert block.stop is not None
        scores = BlockScores.open(self.origin, block)
        keep = np.unpackbits(unpacked(block.detail, "uint8"), count=block.stop - block.start).astype(bool)
        largest = np.zeros(len(self.origin.motifs), np.float32)
        start = block.start
        while start < block.stop:
            stop = scores.end_of_part(start, block.stop)
            chosen = scores.read(start, stop)[keep[start - block.start : stop - block.start]]
            np.maximum(largest, chosen.max(axis=0, initial=0), out=largest)
            start = stop
        return BlockReceipt(
            block=block.number, rows=block.stop - block.start, parts={}, detail={LARGEST: packed(largest)}
        )


@dataclass(frozen=True)
class WindowRules:
    """Rules that write the windows of a block."""

    origin: ScoreSource
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
        features = (*self.origin.motifs, "accessibility")
        columns = region_columns(self.regions, features, (*self.divisors, 1.0), self.chromosomes)
        return columns | ({PEAK_NAME: PEAK_COLUMN} if self.is_measured else {})

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Write a block's windows, in their order. Raises as `BlockScores.read` does, and OSError as the disk."""
        first, size = (unpacked(block.detail[name], "int64") for name in ("first", "size"))
        kept = KeptPeaks.unpack(block.detail, self.chromosomes)
        edges = np.searchsorted(kept.peaks.chromosome, np.arange(len(self.chromosomes)))
        chromosome = kept.peaks.chromosome[first].astype(np.int64)
        plan = WindowPlan(kept.peaks.by_chromosome(), self.regions, chromosome, first - edges[chromosome], size, 0)
        shards = write_shards(
            folder, block.prefix, self.columns, self._batches(block, kept, plan), rows_per_block=self.rows_per_block
        )
        return BlockReceipt(block=block.number, rows=len(first), parts={".": tuple(shards)})

    def _batches(self, block: InputBlock, kept: KeptPeaks, plan: WindowPlan) -> Iterator[dict[str, np.ndarray]]:
        scores = KeptScores(BlockScores.open(self.origin, block), kept.rows, np.array(self.divisors, np.float32))
        accessibility = kept.accessibility
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
