"""Records of a source, read from numbered blocks of its files: Parquet, CSV, JSON lines.

Small files are put together, large ones are cut by row groups or bytes. A record is the values of
columns, or what is wrong with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any

from ditlab.data.import_blocks import InputBlock, group_files
from ditlab.data.source_files import UNREADABLE, BadRecord, SourceFile
from ditlab.data.sources.lines import csv_columns, csv_rows, first_keys, json_rows
from ditlab.data.sources.tables import parquet_batches, parquet_rows, table_schema
from ditlab.data.stores.receipt import (
    DAMAGED,
    NO_RECORD,
    DroppedRecord,
    DroppedRecords,
    ReceiptLevel,
)
from ditlab.errors import UserError, first_line

UNPACKED = ("csv", "jsonl", "tsv", "txt")
"""Kinds of files that are read in their order, so that they may be compressed."""
TEXT_KINDS = ("csv", "jsonl", "parquet", "tsv", "txt")
"""Kinds of files that hold documents, named by their ending."""
ROWS = 64
"""Rows of a table that are read at a time, unless a reader says otherwise: a web page each."""
_THREADS = 16
"""Files whose ends are read at once: behind a URI each read waits for an answer."""


def record_files(listing: Sequence[SourceFile], kinds: Sequence[str]) -> list[SourceFile]:
    """Return the files of some kinds."""
    return [
        file
        for file in listing
        if file.kind in kinds and (file.kind in UNPACKED or not file.compression)
    ]


def column_names(file: SourceFile) -> Sequence[str]:
    """Return the names of a table's columns, of JSON lines the keys of the first. Raises BadRecord
    and errors of `UNREADABLE`.
    """
    if file.kind == "parquet":
        return table_schema(file).names
    if file.kind == "jsonl":
        return first_keys(file)
    return csv_columns(file)


def files_level(
    listing: Sequence[SourceFile],
    used: Mapping[str, Sequence[SourceFile]],
    reasons: Mapping[str, str] | None = None,
) -> tuple[ReceiptLevel, list[DroppedRecord]]:
    """Count the files of a source: those `used`, by what for, and those that are dropped.
    `reasons`: those of files, by name, that are dropped for another reason than their ending.
    Returns as well the first that are dropped.
    """
    purposes: dict[SourceFile, str] = {}
    for what, files in used.items():
        purposes |= dict.fromkeys(files, what)
    dropped = DroppedRecords()
    counts = Counter(dict.fromkeys(used, 0))
    for file in listing:
        if file in purposes:
            counts[purposes[file]] += 1
        else:
            reason = file.set_aside or (reasons or {}).get(file.name) or not_read(file.ending)
            dropped.add(DroppedRecord(place=file.name, reason=reason))
    return ReceiptLevel(unit="files", used=counts, left_out=dropped.counts), dropped.first


def not_read(ending: str) -> str:
    """Return the reason of files whose ending no reader takes."""
    return f"not read ({ending})"


def record_blocks(files: Sequence[SourceFile], most_bytes: int) -> list[InputBlock]:
    """Cut files into blocks of about `most_bytes` of input, in their order; they depend on the
    files alone.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        ranges = list(pool.map(lambda each: _ranges(each, most_bytes), files))
    blocks: list[InputBlock] = []
    cut = zip(files, ranges, strict=True)
    for (kind, is_cut), run in groupby(cut, lambda pair: (pair[0].kind, bool(pair[1]))):
        if is_cut:
            for each, parts in run:
                blocks += [
                    InputBlock(len(blocks) + n, (each,), kind, *part)
                    for n, part in enumerate(parts)
                ]
            continue
        for group in group_files([each for each, _ in run], most_bytes):
            blocks.append(InputBlock(len(blocks), group, kind))
    return blocks


def _ranges(file: SourceFile, most_bytes: int) -> list[tuple[int, int, int]]:
    """Return start, stop and first row of the parts of a large file; [] for a file that is read
    whole.

    Row groups of Parquet, bytes of lines and text; rows are 0 where they have no numbers. Files of
    a zip are read whole, and so are damaged ones.
    """
    if file.size <= most_bytes or file.compression or file.in_zip:
        return []
    if file.kind in ("jsonl", "txt"):
        num = -(-file.size // most_bytes)
        cuts = [number * file.size // num for number in range(num + 1)]
        return [(start, stop, 0) for start, stop in pairwise(cuts)]
    if file.kind != "parquet":
        return []
    try:
        rows = list(accumulate(parquet_rows(file), initial=0))
    except UNREADABLE:
        return []
    allowed = max(1, rows[-1] * most_bytes // file.size)  # few parts are larger than that
    cuts = [0]
    for place in range(1, len(rows)):
        if place - cuts[-1] > 1 and rows[place] - rows[cuts[-1]] > allowed:
            cuts.append(place - 1)
    return [(start, stop, rows[start]) for start, stop in pairwise([*cuts, len(rows) - 1])]


@dataclass(frozen=True)
class SourceRecord:
    """Record of a source, or all of a file behind its damage."""

    file: SourceFile
    where: str
    """Place in the file, for people: `row 12`; empty for a whole file."""
    values: tuple[Any, ...] = ()
    """Values of the columns that were asked for, in their order: text as str, images as bytes, null
    as None.
    """
    problem: BadRecord | None = None
    """Finding why it cannot be read or used; None for a record with values."""
    is_rest: bool = False
    """True for a damaged file, or all of it behind the damage."""

    @property
    def place(self) -> str:
        """Place for people, below the source: `data/a.parquet, row 12`."""
        return ", ".join(filter(None, [self.file.name, self.where]))

    def dropped(self) -> DroppedRecord:
        """Return what a receipt says of it."""
        return DroppedRecord(
            place=self.place,
            reason=DAMAGED if self.is_rest else NO_RECORD,
            detail=str(self.problem),
        )

    def error(self) -> UserError:
        """Return the error for a source whose records must all be read."""
        assert self.problem is not None, "it can be read"
        where = ", ".join(filter(None, [self.file.place, self.where]))
        return UserError(f"{where}: {self.problem}; {self.problem.remedy}.")


def read_records(
    block: InputBlock, columns: Mapping[str, str], rows: int = ROWS
) -> Iterator[SourceRecord]:
    """Iterate over a block's records: columns, or keys of JSON lines, by the flag that names each.

    `rows`: those of a table that are read at a time. A record that cannot be read, and all behind
    the damage of a file, is one with a problem. Raises UserError for a column that is not there,
    and Unreachable where a URI does not answer.
    """
    for file in block.files:
        where = f"row {block.first_row - 1}" if block.first_row else ""
        try:
            for where, values in _places(block, file, columns, rows):
                if isinstance(values, BadRecord):
                    yield SourceRecord(file, where, problem=values)
                else:
                    yield SourceRecord(file, where, values)
            continue
        except BadRecord as error:
            problem = error
        except UNREADABLE as error:
            problem = BadRecord(f"is no .{block.kind} file that can be read ({first_line(error)})")
        rest = f"the rest behind {where}" if where else ""
        yield SourceRecord(file, rest, problem=problem, is_rest=True)


def _places(
    block: InputBlock, file: SourceFile, columns: Mapping[str, str], rows: int
) -> Iterator[tuple[str, tuple[Any, ...] | BadRecord]]:
    """Iterate over the records of a file of a block, each with its place in the file."""
    if block.kind == "jsonl":
        yield from json_rows(file, columns, block.start, block.stop)
        return
    if block.kind in ("csv", "tsv"):
        found = csv_rows(file, columns)
    else:
        found = _table_rows(file, block, columns, rows)
    for place, values in enumerate(found, start=block.first_row):
        yield f"row {place}", values


def _table_rows(
    file: SourceFile, block: InputBlock, columns: Mapping[str, str], rows: int
) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of a block's Parquet file."""
    groups = None if block.stop is None else range(block.start, block.stop)
    for batch in parquet_batches(file, columns, rows, groups):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def text_problem(flag: str, column: str, value: Any) -> BadRecord | None:
    """Return the finding on a value, of the column of a flag, that is no text of UTF-8; None for
    text.
    """
    if not isinstance(value, str):
        held = "null" if value is None else f"a {type(value).__name__}"
        return BadRecord(
            f"'{column}' holds {held}, not text",
            f"write text there, leave the record out, or give {flag}",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        place = f"character {error.start}"
        return BadRecord(
            f"'{column}' holds half of a surrogate pair at {place}, which is no text",
            "write it again",
        )
    return None
