"""Import of a GET store by blocks: largest scores of the motifs, then windows of peaks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ditlab.data.block_imports.execution import ProcessExecutor
from ditlab.data.block_imports.finishing import finish_import, refuse_bucketed_store
from ditlab.data.block_imports.listing import source_name
from ditlab.data.block_imports.plan import ImportPlan, partial_folder
from ditlab.data.block_imports.receipt import BlockReceipt
from ditlab.data.block_imports.runner import run_blocks, unfinished_import
from ditlab.data.genome.block_rules import LARGEST, LargestScoreRules, WindowRules
from ditlab.data.genome.block_scores import ScoreReader
from ditlab.data.genome.get_zarr import GetZarrStore, listed, open_get_zarr
from ditlab.data.genome.region_windows import WHOLE_CHROMOSOMES, WindowPlan, plan_windows
from ditlab.data.genome.window_blocks import KeptPeaks, score_blocks, unpacked, window_blocks
from ditlab.data.import_request import ImportRequest
from ditlab.data.processes import fitting_processes
from ditlab.data.source_files import visible_name
from ditlab.data.stores.layout import WHOLE_BYTES, block_rows
from ditlab.data.stores.manifest import Source
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.written import LeftOutRecords, WrittenStore
from ditlab.errors import UserError
from ditlab.spec.importing import GetOptions

IRRELEVANT = {"source", "processes", "name"}
"""Options that do not change a store; the source enters by its listing."""
QUICKER = 16
"""Factor by which scores take less time a byte of input than images, so that more of them make a process worth it."""


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
    path = request.out / (options.name or _default_name(options.cell_type))
    refuse_bucketed_store(path)
    chosen = _choose(open_get_zarr(options.source, request.progress), options)
    reader = ScoreReader(options.source, chosen.source.motifs)
    described = options.model_dump(mode="json", exclude=IRRELEVANT)
    to_measure = score_blocks(chosen.source, chosen.kept.rows)
    fitting = fitting_processes(sum(block.bytes for block in to_measure) // QUICKER)
    executor = request.executor or ProcessExecutor(options.processes or fitting, "reads scores")
    measuring = ImportPlan.of("get scores", to_measure, described, len(chosen.source.peaks))
    measured = partial_folder(path, measuring)
    with unfinished_import(measured):
        measure = LargestScoreRules(reader)
        found = run_blocks(
            measuring, measure, measured, executor, request.progress, "reading the largest scores", "peaks"
        )
        rules = _window_rules(reader, chosen, _divisors(found))
        row_bytes = sum(column.row_bytes for column in rules.columns.values())
        blocks = window_blocks(chosen.source, chosen.kept, chosen.plan, row_bytes, rules.rows_per_block)
        writing = ImportPlan.of("get", blocks, {**described, "divisors": rules.divisors}, len(chosen.plan))
        folder = partial_folder(path, writing)
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
            dropped = num - len(self.kept.rows)
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
    kept = KeptPeaks(np.arange(len(source.peaks)), None)
    if options.cell_type is not None:
        atpm = source.atpm(options.cell_type)
        rows = np.flatnonzero(atpm)
        if not len(rows):
            raise UserError(
                f"--cell-type={options.cell_type}: all {len(atpm):,} peaks of {options.source} have an atpm of zero in "
                "it, so none is left; choose another cell type."
            )
        kept = KeptPeaks(rows, None if options.accessibility == "ones" else atpm[rows])
    plan = plan_windows(source.peaks.by_chromosome(kept.rows), options.regions, options.stride, options.max_span)
    if not len(plan):
        raise UserError(
            f"--max-span={options.max_span} drops all {plan.dropped:,} windows of --regions={options.regions} over "
            f"{len(kept.rows):,} peaks of {options.source}; raise --max-span, or lower --regions."
        )
    return ChosenWindows(source, options, kept, plan)


def _divisors(receipts: Sequence[BlockReceipt]) -> tuple[float, ...]:
    """Return each motif's largest score over all blocks; 1 for a motif that is always zero."""
    largest = np.max([unpacked(receipt.detail[LARGEST], "float32") for receipt in receipts], axis=0)
    return tuple(np.where(largest > 0, largest, np.float32(1)).tolist())


def _window_rules(reader: ScoreReader, chosen: ChosenWindows, divisors: tuple[float, ...]) -> WindowRules:
    """Return the rules. A store of up to WHOLE_BYTES is one block, so that it is read at once."""
    is_measured = chosen.kept.accessibility is not None
    rules = WindowRules(reader, chosen.source.peaks.chromosomes, chosen.options.regions, divisors, is_measured, 0)
    row_bytes = sum(column.row_bytes for column in rules.columns.values())
    num = len(chosen.plan)
    return replace(rules, rows_per_block=num if num * row_bytes <= WHOLE_BYTES else block_rows(row_bytes))


def _finish(
    path: Path, folder: Path, receipts: Sequence[BlockReceipt], rules: WindowRules, chosen: ChosenWindows
) -> WrittenStore:
    cell_type, motifs = chosen.options.cell_type, len(rules.reader.motifs)
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


def _default_name(cell_type: str | None) -> str:
    """Return `get-CELL_TYPE`, or `get`."""
    return "get" if cell_type is None else f"get-{folder_name(cell_type)}"
