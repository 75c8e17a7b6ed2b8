"""Import of a GET store by blocks: largest scores of the motifs, then windows of peaks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.data.import_blocks import (
    BlockReceipt,
    InputBlock,
    ProcessExecutor,
    RefusedSource,
    block_bytes,
    finish_import,
    imported_blocks,
    packed,
    unpacked,
)
from ditlab.data.importing import ImportRequest
from ditlab.data.processes import fitting_processes
from ditlab.data.region_windows import (
    PEAK,
    WHOLE_CHROMOSOMES,
    Windows,
    plan_windows,
    region_columns,
    window_batches,
)
from ditlab.data.source_files import SourceFile, source_name
from ditlab.data.stores.block_index import WHOLE_BYTES, block_rows
from ditlab.data.stores.duplicates import REPEATS, content_digests, duplicate_rows
from ditlab.data.stores.manifest import Column, Source, folder_name, row_bytes
from ditlab.data.stores.receipt import (
    LISTED,
    DroppedRecord,
    ReceiptLevel,
    SourceReceipt,
    make_receipt,
)
from ditlab.data.stores.writer import write_shards
from ditlab.data.stores.writing import WrittenStore, refuse_bucketed_store
from ditlab.errors import UserError, shortened
from ditlab_addons.genome.get_zarr import MOST_LISTED, GetZarrStore, open_get_zarr, peak_name
from ditlab_addons.genome.options import GetOptions
from ditlab_addons.genome.zarr_arrays import ZarrArray, ZarrFiles, open_array

IRRELEVANT = {"source", "processes", "name", "keep_duplicates"}
"""Options that do not change a store; the source enters by its listing."""
QUICKER = 16
"""Factor by which scores take less time a byte of input than images, so that more of them make a
process worth it.
"""
CHUNKS_A_BLOCK = 8
"""Least chunks (along the peaks) that a block of windows covers: neighbours both read the one
between them.
"""
READ_BYTES = 8 * 2**20
"""Bytes of scores read at a time, unless one of the store's chunks is larger."""
PEAK_NAME = "largest_accessibility"
PEAK_COLUMN = Column(
    dtype="float64",
    unit="atpm",
    description="the window's largest accessibility, by which its others were divided",
)
"""Column of windows whose accessibilities were measured."""
DIGESTS = "digests"
"""Key of a receipt's detail: the digests of its windows' features."""
LARGEST = "largest scores"
"""Key of a receipt's detail: the largest score of each motif over the block's kept peaks."""


def import_get(request: ImportRequest[GetOptions]) -> WrittenStore:
    """Write one store of windows: see `region_windows.region_columns`; the last feature is
    accessibility.

    The scores are read twice, for each motif's largest over the kept peaks, then for the windows:
    rows and their order depend on the source and the options alone. Memory holds some chunks of
    scores and windows in each process, and about 120 bytes a peak in this one. Raises UserError for
    a damaged source, and where every window is dropped.
    """
    options = request.options
    progress = request.progress
    if options.accessibility == "atpm" and options.cell_type is None:
        raise UserError(
            "--accessibility=atpm needs a cell type; give --cell-type, or leave "
            "--accessibility out."
        )
    default_name = "get"
    if options.cell_type is not None:
        default_name = f"get-{folder_name(options.cell_type)}"
    path = request.out / (options.name or default_name)
    refuse_bucketed_store(path)
    source = open_get_zarr(options.source, progress)
    kept = source.peaks
    if options.cell_type is not None:
        kept = _open_peaks(source, options.cell_type, options)
    windows = plan_windows(kept, options.regions, options.stride, options.max_span)
    num = len(windows.first)
    if not num:
        raise UserError(
            f"--max-span={options.max_span} drops all {windows.dropped:,} windows of "
            f"--regions={options.regions} over {len(kept):,} peaks of {options.source}; raise "
            "--max-span, or lower --regions."
        )
    described = options.model_dump(mode="json", exclude=IRRELEVANT)
    to_measure = score_blocks(source, kept["row"])
    fitting = fitting_processes(sum(block.bytes for block in to_measure) // QUICKER)
    executor = request.executor or ProcessExecutor(options.processes or fitting, "reads scores")
    measure = LargestScoreRules(options.source, source.motifs)
    what = "reading the largest scores"
    with imported_blocks(
        path, "get scores", to_measure, described, measure, executor, progress, what
    ) as (_, found):
        largest = np.max([receipt.detail[LARGEST] for receipt in found], axis=0)
        divisors = tuple(np.where(largest > 0, largest, 1).tolist())
        names = (*source.motifs, "accessibility")
        columns = region_columns(options.regions, names, (*divisors, 1.0), source.chromosomes)
        if options.takes_atpm:
            columns[PEAK_NAME] = PEAK_COLUMN
        num_bytes = row_bytes(columns)
        # a small store is one block, so that it is read at once
        is_small = num * num_bytes <= WHOLE_BYTES
        rows_per_block = num if is_small else block_rows(num_bytes)
        rules = WindowRules(options.source, columns, rows_per_block)
        blocks = window_blocks(source, kept, windows, num_bytes, rows_per_block)
        described["divisors"] = divisors
        with imported_blocks(
            path, "get", blocks, described, rules, executor, progress, "writing"
        ) as (folder, receipts):
            digests = [unpacked(receipt.detail[DIGESTS], np.uint64) for receipt in receipts]
            duplicates = duplicate_rows(np.concatenate(digests))
            note, receipt = _origin(source, kept, windows, options, len(duplicates))
            features = f"{len(source.motifs)} motifs and accessibility"
            of_cells = f", cell type {options.cell_type}" if options.cell_type else ""
            return finish_import(
                path,
                folder,
                receipts,
                columns,
                description=f"windows of {options.regions} peaks, {features}{of_cells}",
                source=Source(
                    kind="get",
                    citation=(
                        "X. Fu et al., A foundation model of transcription across human cell "
                        "types, Nature (2025)"
                    ),
                    license="not stated in the zarr store",
                    note=note,
                ),
                receipt=receipt,
                attachments=duplicates.attachments(options.keep_duplicates),
            )


def _open_peaks(source: GetZarrStore, cell_type: str, options: GetOptions) -> np.ndarray:
    """Return the peaks that are accessible in a cell type, with their accessibilities unless these
    are ones.
    """
    atpm = source.atpm(cell_type)
    kept = source.peaks[atpm > 0]
    if not len(kept):
        raise UserError(
            f"--cell-type={cell_type}: all {len(atpm):,} peaks of {options.source} have an "
            "atpm of zero in it, so none is left; choose another cell type."
        )
    if options.takes_atpm:
        kept["atpm"] = atpm[kept["row"]]
    return kept


def _origin(
    source: GetZarrStore,
    kept: np.ndarray,
    windows: Windows,
    options: GetOptions,
    num_repeats: int,
) -> tuple[str, SourceReceipt]:
    """Return the note on where a store's windows come from, and the receipt."""
    num = len(source.peaks)
    cell_type = options.cell_type
    data = source.data
    closed = np.setdiff1d(source.peaks["row"], kept["row"])
    num_files = math.prod(
        -(-size // part) for size, part in zip(data.shape, data.file_shape, strict=True)
    )
    missing = num_files - sum(1 for _ in data.chunk_files(0, num))
    parts = [f"read from {source_name(options.source)} (zarr format {source.format})"]
    if cell_type is None:
        known = shortened(source.files.members("atpm"), MOST_LISTED) or "none"
        parts.append(f"accessibility is 1 everywhere; cell types for --cell-type: {known}")
    if options.stride is not None and options.stride < options.regions:
        parts.append(f"neighbouring windows share regions: {WHOLE_CHROMOSOMES}")
    names = [peak_name(source.chromosomes, source.peaks[row]) for row in closed[:LISTED]]
    borders = np.zeros(len(kept) + 1, np.int64)
    np.add.at(borders, windows.first, 1)
    np.add.at(borders, windows.first + windows.size, -1)
    num_inside = int((np.cumsum(borders) > 0).sum())
    unused = +Counter({"zero atpm": len(closed), "in no window": len(kept) - num_inside})
    wide = +Counter({f"over {options.max_span:,} base pairs": windows.dropped})
    levels = [
        ReceiptLevel(unit="peaks", used={"in windows": num_inside}, left_out=unused),
        ReceiptLevel(unit="windows", used={"rows": len(windows.first)}, left_out=wide),
    ]
    changed = {
        f"{data.kind_of_files} without a file, read as zeros": missing,
        REPEATS: num_repeats,
    }
    dropped = [DroppedRecord(place=name, reason="zero atpm") for name in names]
    return "; ".join(parts), make_receipt(levels, dropped, changed)


def score_blocks(source: GetZarrStore, rows: np.ndarray) -> Sequence[InputBlock]:
    """Cut a store into blocks of whole chunks, whose largest scores over the kept peaks `rows` are
    measured.
    """
    num = len(source.peaks)
    keep = np.zeros(num, bool)
    keep[rows] = True
    most = block_bytes(sum(file.size for file in source.data.chunk_files(0, num)))
    edges = [0]
    size = 0
    for first in range(0, num, source.data.file_shape[0]):
        added = sum(file.size for file in source.data.chunk_files(first, first + 1))
        if first and size + added > most:
            edges.append(first)
            size = 0
        size += added
    return [
        _block(number, source, start, stop, packed(np.packbits(keep[start:stop])))
        for number, (start, stop) in enumerate(zip(edges, [*edges[1:], num], strict=True))
    ]


def window_blocks(
    source: GetZarrStore, kept: np.ndarray, windows: Windows, num_bytes: int, rows_per_block: int
) -> Sequence[InputBlock]:
    """Cut windows of `num_bytes` bytes into blocks of about `block_bytes`: whole blocks of the
    store.
    """
    first = windows.first
    size = windows.size
    step = max(1, (first[-1] - first[0]) / max(1, len(first) - 1))
    chunk = source.data.file_shape[0] * len(kept) / len(source.peaks)
    num = max(block_bytes(len(first) * num_bytes) // num_bytes, int(CHUNKS_A_BLOCK * chunk / step))
    num = max(1, -(-num // rows_per_block)) * rows_per_block
    blocks: list[InputBlock] = []
    for begin in range(0, len(first), num):
        firsts = first[begin : begin + num]
        sizes = size[begin : begin + num]
        peaks = kept[firsts[0] : (firsts + sizes).max()]
        detail = {
            "peaks": packed(peaks),
            "first": packed(firsts - firsts[0]),
            "size": packed(sizes),
        }
        blocks.append(
            _block(len(blocks), source, int(peaks["row"][0]), int(peaks["row"][-1]) + 1, detail)
        )
    return blocks


def _block(number: int, source: GetZarrStore, start: int, stop: int, detail: Any) -> InputBlock:
    """Make a block of rows of the store, which may read names of these rows as well."""
    names = source.names.chunk_files(start, stop)
    beside = (*source.data.metadata_files, *source.names.metadata_files, *names)
    files: tuple[SourceFile, ...] = tuple(source.data.chunk_files(start, stop))
    return InputBlock(number, files, start=start, stop=stop, beside=beside, detail=detail)


def read_scores(data: ZarrArray, motifs: Sequence[str], start: int, stop: int) -> np.ndarray:
    """Read scores of some peaks, float32 (peaks, motifs). Raises RefusedSource for negative,
    infinite and NaN ones.
    """
    found = data.read(slice(start, stop))
    with np.errstate(over="ignore"):  # beyond float32: infinite, and refused below
        values: np.ndarray = found.astype(np.float32, copy=False)
    if not (values.min() >= 0 and values.max() < np.inf):  # NaN compares as false
        row, column = np.argwhere(~((values >= 0) & (values < np.inf)))[0]
        peak = start + int(row)
        name = open_array(data.files, "peak_names").read(slice(peak, peak + 1)).reshape(-1)[0]
        if isinstance(name, bytes):
            name = name.decode()
        raise RefusedSource(
            f"{data.files.source}: data holds {found[row, column]} for motif {motifs[column]} "
            f"of peak {name} (number {peak:,} from 0); it needs finite numbers of 0 or more."
        )
    return values


def end_of_part(data: ZarrArray, start: int, stop: int) -> int:
    """Return the end of the rows to be read together from `start` on: whole chunks, so that none is
    read twice.
    """
    chunk = data.file_shape[0]
    peak_bytes = data.shape[1] * max(4, data.dtype.itemsize)
    return min(stop, (start // chunk + max(1, READ_BYTES // (chunk * peak_bytes))) * chunk)


@dataclass(frozen=True)
class LargestScoreRules:
    """Rules that measure each motif's largest score over the kept peaks of a block. They write no
    shards.
    """

    source: str
    """Folder or URI as it was given, for messages."""
    motifs: tuple[str, ...]

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Read a block's scores. Raises as `read_scores` does."""
        assert block.stop is not None
        data = open_array(ZarrFiles(self.source, (*block.files, *block.beside)), "data")
        keep = np.unpackbits(
            unpacked(block.detail, "uint8"), count=block.stop - block.start
        ).astype(bool)
        largest = np.zeros(len(self.motifs), np.float32)
        start = block.start
        while start < block.stop:
            stop = end_of_part(data, start, block.stop)
            chosen = read_scores(data, self.motifs, start, stop)[
                keep[start - block.start : stop - block.start]
            ]
            np.maximum(largest, chosen.max(axis=0, initial=0), out=largest)
            start = stop
        rows = block.stop - block.start
        return BlockReceipt(
            block=block.number, rows=rows, parts={}, detail={LARGEST: largest.tolist()}
        )


@dataclass(frozen=True)
class WindowRules:
    """Rules that write the windows of a block."""

    source: str
    """Folder or URI as it was given, for messages."""
    columns: dict[str, Column]
    """Columns of the store: features are motifs over their divisors, and accessibility."""
    rows_per_block: int
    """Rows of a block of the store."""

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Write a block's windows, in their order. Raises as `read_scores` does, and OSError as the
        disk.
        """
        windows = Windows(
            unpacked(block.detail["first"], "int64"), unpacked(block.detail["size"], "int64")
        )
        peaks = unpacked(block.detail["peaks"], PEAK)
        (regions, num_features) = self.columns["regions"].shape
        data = open_array(ZarrFiles(self.source, (*block.files, *block.beside)), "data")
        scores = self._scores(data, peaks["row"])
        largest: list[float] = []  # accessibilities of the windows of the current batch

        def features(first: int, stop: int) -> np.ndarray:
            atpm = peaks["atpm"][first:stop]
            largest.append(atpm.max())
            values = np.empty((stop - first, num_features), np.float32)
            values[:, :-1] = scores(first, stop)
            values[:, -1] = atpm / largest[-1]
            return values

        digests: list[np.ndarray] = []

        def batches() -> Iterator[dict[str, np.ndarray]]:
            for batch in window_batches(peaks, windows, regions, num_features, features):
                digests.append(content_digests(batch["regions"]))
                if PEAK_NAME in self.columns:
                    batch[PEAK_NAME] = np.array(largest)
                yield batch
                largest.clear()

        shards = write_shards(
            folder, block.prefix, self.columns, batches(), rows_per_block=self.rows_per_block
        )
        return BlockReceipt(
            block=block.number,
            rows=len(windows.first),
            parts={".": tuple(shards)},
            detail={DIGESTS: packed(np.concatenate(digests))},
        )

    def _scores(self, data: ZarrArray, rows: np.ndarray) -> Callable[[int, int], np.ndarray]:
        """Return a function of ascending (first, stop): those peaks' scores over the divisors,
        float32.
        """
        column = self.columns["regions"]
        begin = 0
        divisors = np.array(column.divisors[:-1], np.float32)
        held = np.zeros((0, len(divisors)), np.float32)

        def between(first: int, stop: int) -> np.ndarray:
            nonlocal held, begin
            held = held[first - begin :]
            begin = first
            while begin + len(held) < stop:
                low = int(rows[begin + len(held)])
                high = end_of_part(data, low, int(rows[-1]) + 1)
                there = rows[begin + len(held) : np.searchsorted(rows, high)]
                chosen = read_scores(data, column.names, low, high)[there - low]
                held = np.concatenate([held, np.minimum(chosen / divisors, 1)])
            return held[: stop - first]

        return between
