"""Importer of GET's regions by motifs (Fu et al. 2025): windows of peaks, each motif over its largest score."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ditlab.data.genome.get_zarr import GetZarrStore, listed, open_get_zarr
from ditlab.data.genome.region_windows import (
    PEAK_COLUMN,
    PEAK_NAME,
    WHOLE_CHROMOSOMES,
    WindowPlan,
    plan_windows,
    region_columns,
    window_batches,
)
from ditlab.data.import_request import ImportRequest
from ditlab.data.source_files import visible_name
from ditlab.data.stores.manifest import Source
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.written import WrittenStore, write_store
from ditlab.errors import UserError
from ditlab.progress import Progress
from ditlab.spec.importing import GetOptions

OPTIONS = GetOptions


@dataclass(frozen=True)
class KeptPeaks:
    """Peaks that are imported."""

    rows: np.ndarray
    """int64, ascending numbers of the peaks in the source."""
    accessibility: np.ndarray | None
    """float64 (kept,), above 0, to be divided by its largest in a window; None where it is 1 everywhere."""


def run(request: ImportRequest[GetOptions]) -> list[WrittenStore]:
    """Write one store of windows: see `region_windows.region_columns`; the last feature is accessibility.

    Reads the scores twice, first for each motif's largest over the kept peaks, then for the windows; memory holds a
    block of scores, and 40 bytes or so a peak. Everything about the source is checked before the first byte is written.
    Raises UserError for a damaged source, and where every window is dropped.
    """
    options = request.options
    if options.accessibility == "atpm" and options.cell_type is None:
        raise UserError("--accessibility=atpm needs a cell type; give --cell-type, or leave --accessibility out.")
    source = open_get_zarr(options.source, request.progress)
    kept = _keep(source, options)
    plan = plan_windows(source.peaks.by_chromosome(kept.rows), options.regions, options.stride, options.max_span)
    if not len(plan):
        raise UserError(
            f"--max-span={options.max_span} drops all {plan.dropped:,} windows of --regions={options.regions} over "
            f"{len(kept.rows):,} peaks of {source.path}; raise --max-span, or lower --regions."
        )
    divisors = _divisors(source, kept.rows, request.progress)
    features = (*source.motifs, "accessibility")
    columns = region_columns(options.regions, features, (*divisors.tolist(), 1.0), source.peaks.chromosomes)
    of_cells = f", cell type {options.cell_type}" if options.cell_type else ""
    name = options.name or _default_name(options.cell_type)
    return [
        write_store(
            request.out / name,
            columns if kept.accessibility is None else columns | {PEAK_NAME: PEAK_COLUMN},
            _batches(plan, source, kept, divisors, request.progress),
            name=name,
            description=f"windows of {options.regions} peaks, {len(source.motifs)} motifs and accessibility{of_cells}",
            source=Source(
                kind="get",
                citation="X. Fu et al., A foundation model of transcription across human cell types, Nature (2025)",
                license="not stated in the zarr store",
                note=_note(source, options, kept, plan),
            ),
        )
    ]


def _keep(source: GetZarrStore, options: GetOptions) -> KeptPeaks:
    if options.cell_type is None:
        return KeptPeaks(np.arange(len(source.peaks)), None)
    atpm = source.atpm(options.cell_type)
    rows = np.flatnonzero(atpm)
    if not len(rows):
        raise UserError(
            f"--cell-type={options.cell_type}: all {len(atpm):,} peaks of {source.path} have an atpm of zero in it, so "
            "none is left; choose another cell type."
        )
    return KeptPeaks(rows, None if options.accessibility == "ones" else atpm[rows])


def _divisors(source: GetZarrStore, rows: np.ndarray, progress: Progress) -> np.ndarray:
    """Return each motif's largest score over the peaks `rows`, float32 (motifs,); 1 for a motif that is always zero."""
    keep = np.zeros(len(source.peaks), bool)
    keep[rows] = True
    largest = np.zeros(len(source.motifs), np.float32)
    for first, values in source.blocks("reading the largest scores", progress):
        chosen = values[keep[first : first + len(values)]]
        np.maximum(largest, chosen.max(axis=0, initial=0), out=largest)
    return np.where(largest > 0, largest, np.float32(1))


class _ScoreBlocks:
    """Scores of the kept peaks over the divisors, read block by block as windows need them."""

    def __init__(self, source: GetZarrStore, rows: np.ndarray, divisors: np.ndarray):
        self._source, self._rows, self._divisors = source, rows, divisors
        self._held = np.zeros((0, len(divisors)), np.float32)
        self._first = 0
        """Number, among the kept peaks, of the first in `_held`."""

    def between(self, first: int, stop: int) -> np.ndarray:
        """Return the scores of kept peaks `first` to `stop`, float32 (peaks, motifs); `first` must never decrease."""
        self._held = self._held[first - self._first :]
        self._first = first
        while self._first + len(self._held) < stop:
            self._held = np.concatenate([self._held, self._next_block(self._first + len(self._held))])
        return self._held[: stop - first]

    def _next_block(self, kept: int) -> np.ndarray:
        """Read the scores of the kept peaks from number `kept` to the end of its block."""
        size = self._source.block_rows
        begin = int(self._rows[kept]) // size * size
        end = int(np.searchsorted(self._rows, begin + size))
        chosen = self._source.block(begin)[self._rows[kept:end] - begin]
        return np.minimum(np.divide(chosen, self._divisors, out=chosen), 1, out=chosen)


def _batches(
    plan: WindowPlan, source: GetZarrStore, kept: KeptPeaks, divisors: np.ndarray, progress: Progress
) -> Iterator[dict[str, np.ndarray]]:
    scores = _ScoreBlocks(source, kept.rows, divisors)
    offsets = np.cumsum([0, *(len(along) for along in plan.peaks)])
    done = 0
    largest: list[float] = []
    """Largest accessibilities of the windows of the current batch."""

    def features(chromosome: int, first: int, stop: int) -> np.ndarray:
        begin, end = int(offsets[chromosome]) + first, int(offsets[chromosome]) + stop
        values = np.ones((stop - first, len(divisors) + 1), np.float32)
        values[:, :-1] = scores.between(begin, end)
        if kept.accessibility is not None:
            largest.append(kept.accessibility[begin:end].max())
            values[:, -1] = kept.accessibility[begin:end] / largest[-1]
        return values

    for batch in window_batches(plan, len(divisors) + 1, features):
        if kept.accessibility is not None:
            batch[PEAK_NAME] = np.array(largest)
            largest.clear()
        yield batch
        done += len(batch["present"])
        progress("writing", done, len(plan), "windows")


def _default_name(cell_type: str | None) -> str:
    """Return `get-CELL_TYPE`, or `get`."""
    return "get" if cell_type is None else f"get-{folder_name(cell_type)}"


def _note(source: GetZarrStore, options: GetOptions, kept: KeptPeaks, plan: WindowPlan) -> str:
    num = len(source.peaks)
    parts = [f"read from {visible_name(source.path.name)} (zarr format {source.format})"]
    if options.cell_type is None:
        known = listed(source.cell_types)
        parts.append(f"accessibility is 1 everywhere; cell types for --cell-type: {known or 'none'}")
    else:
        parts.append(f"{num - len(kept.rows):,} of {num:,} peaks dropped (zero atpm in {options.cell_type})")
    windows = f"{plan.dropped:,} of {plan.dropped + len(plan):,} windows"
    parts.append(f"{windows} dropped (over {options.max_span:,} base pairs)")
    if options.stride is not None and options.stride < options.regions:
        parts.append(f"neighbouring windows share regions: {WHOLE_CHROMOSOMES}")
    if source.missing_chunks:
        parts.append(f"{source.missing_chunks} of data have no file and were read as zeros")
    return "; ".join(parts)
