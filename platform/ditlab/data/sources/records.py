"""Records of a source, read from numbered blocks of its files, whatever their kind.

Small files are put together, large ones are cut by row groups, batches or bytes. A record is the values of columns, or
what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

from ditlab.data.block_imports.plan import MOST_FILES, BlockNumbers, InputBlock
from ditlab.data.block_imports.source_files import BadRecord, SourceFile, SourceListing
from ditlab.data.sources.arrow_streams import STATE, arrow_batches, batch_places, refuse_splits, saved_files
from ditlab.data.sources.lines import byte_ranges, lines_between, parse_line
from ditlab.data.sources.mds import INDEX, MdsShard, mds_samples, read_index, shard_file
from ditlab.data.sources.parquet import parquet_batches, parquet_rows
from ditlab.errors import first_line

if TYPE_CHECKING:
    import pyarrow as pa


KINDS = ("arrow", "jsonl", "mds", "parquet")
"""Kinds of files that hold records, named by their ending; those of MDS come with their index alone."""
TEXT_KINDS = (*KINDS, "txt")
"""Kinds of files that hold documents."""
_THREADS = 16
"""Files whose ends or heads are read at once: behind a URI each read waits for an answer."""
RecordKind = Literal["parquet", "arrow", "jsonl", "mds"]
"""Kind of a block whose files hold records."""
RECORD_KINDS: tuple[str, ...] = get_args(RecordKind)
ROWS = 64
"""Rows of a table that are read at a time: a web page each, a few hundred kilobytes together."""


@dataclass(frozen=True)
class RecordFile:
    """File of a source that holds records."""

    kind: str
    """One of TEXT_KINDS."""
    file: SourceFile
    detail: Any = None
    """Its shard of an MDS index, as values of JSON."""


@dataclass(frozen=True)
class FileRange:
    """Part of a file: row groups of Parquet, bytes of the others."""

    start: int
    stop: int
    first_row: int
    """Number of its first row in the file; 0 where rows have none."""


def record_files(knob: str, listing: SourceListing, kinds: Sequence[str] = KINDS) -> list[RecordFile]:
    """Return the files of some kinds, a folder at a time in the order of their names, an index's in the index's.

    Raises UserError for an index or folder that is not whole, and for a folder of several splits.
    """
    refuse_splits(knob, listing)
    files = {file.name: file for file in listing.files}
    indexed: dict[str, list[RecordFile]] = {}  # by the name of the index
    owned: set[str] = set()
    for file in sorted(listing.files, key=lambda each: each.name.count("/")):
        if (found := _of_index(file, files)) is not None:
            # those of an index above are the same: the library merges the indices of folders into one over them
            indexed[file.name] = [each for each in found if each.file.name not in owned]
            owned.update(each.file.name for each in found)
    chosen: list[RecordFile] = []
    for file in sorted(listing.files, key=lambda each: each.name.split("/")):
        kind = file.suffix.removeprefix(".")
        if file.name in indexed:
            chosen += indexed[file.name]
        elif file.name not in owned and kind in kinds and kind != "mds":
            chosen.append(RecordFile(kind, file))
    return [each for each in chosen if each.kind in kinds]


def record_blocks(files: Sequence[RecordFile], most_bytes: int, blocks: BlockNumbers | None = None) -> BlockNumbers:
    """Cut files into blocks of about `most_bytes` of input, which depend on the files alone; returns all.

    Blocks keep the order of files and records.
    """
    blocks = blocks or BlockNumbers()
    with ThreadPoolExecutor(_THREADS) as pool:
        ranges = list(pool.map(lambda each: _ranges(each, most_bytes), files))
    group: list[RecordFile] = []

    def close() -> None:
        if group:
            detail = [each.detail for each in group] if group[0].detail is not None else None
            blocks.add([each.file for each in group], group[0].kind, detail=detail)
            group.clear()

    for each, parts in zip(files, ranges, strict=True):
        size = sum(file.file.size for file in group) + each.file.size
        if parts or (group and (each.kind != group[0].kind or size > most_bytes or len(group) == MOST_FILES)):
            close()
        if not parts:
            group.append(each)
        for part in parts:
            blocks.add([each.file], each.kind, start=part.start, stop=part.stop, first_row=part.first_row)
    close()
    return blocks


def _of_index(file: SourceFile, files: dict[str, SourceFile]) -> list[RecordFile] | None:
    """Return the files that an index names; None for what is no index."""
    name = file.name.rpartition("/")[2]
    if name == INDEX and (shards := read_index(file)) is not None:
        return [RecordFile("mds", shard_file(file, shard, files), shard.model_dump(mode="json")) for shard in shards]
    if name == STATE and (found := saved_files(file, files)) is not None:
        return [RecordFile("arrow", each) for each in found]
    return None


def _ranges(each: RecordFile, most_bytes: int) -> list[FileRange]:
    """Return the ranges of a large file; [] for a file that is read whole, as a damaged one is."""
    cut = _CUTS.get(each.kind)
    if cut is None or each.file.size <= most_bytes:
        return []
    try:
        return list(cut(each.file, most_bytes))
    except BadRecord:
        return []


def _row_groups(file: SourceFile, most_bytes: int) -> Iterator[FileRange]:
    rows = parquet_rows(file)
    ends = [0]
    for number in rows:
        ends.append(ends[-1] + number)
    allowed = max(1, ends[-1] * most_bytes // file.size)  # rows of about as many bytes
    for start, stop in pairwise(_cuts(ends, allowed)):
        yield FileRange(start, stop, ends[start])


def _record_batches(file: SourceFile, most_bytes: int) -> Iterator[FileRange]:
    places = batch_places(file)
    if not places:
        return
    edges = [each.start for each in places] + [places[-1].stop]
    rows = [0]
    for each in places:
        rows.append(rows[-1] + each.rows)
    for start, stop in pairwise(_cuts(edges, most_bytes)):
        yield FileRange(edges[start], edges[stop], rows[start])


def _bytes(file: SourceFile, most_bytes: int) -> Iterator[FileRange]:
    for start, stop in byte_ranges(file.size, most_bytes):
        yield FileRange(start, stop, 0)


_CUTS: dict[str, Callable[[SourceFile, int], Iterator[FileRange]]] = {
    "parquet": _row_groups, "arrow": _record_batches, "jsonl": _bytes, "txt": _bytes,
}  # fmt: skip


def _cuts(edges: list[int], allowed: int) -> list[int]:
    """Return places of ascending edges, the first and last among them, so that few steps are longer than `allowed`."""
    cuts = [0]
    for place in range(1, len(edges)):
        if place - cuts[-1] > 1 and edges[place] - edges[cuts[-1]] > allowed:
            cuts.append(place - 1)
    return [*cuts, len(edges) - 1]


@dataclass(frozen=True)
class SourceRecord:
    """Record of a source."""

    place: str
    """Place for people: `data/a.parquet, row 12`."""
    values: tuple[Any, ...] = ()
    """Values of the columns that were asked for, in their order: text as str, images as bytes, null as None."""
    problem: BadRecord | None = None
    """Reason why it cannot be read; None for a record with values."""


def read_records(block: InputBlock, columns: Mapping[str, str]) -> Iterator[SourceRecord]:
    """Iterate over a block's records: columns, or keys of JSON lines, by the flag that names each.

    A record that cannot be read is one with a problem, and so is all that lies behind the damage of a file. Raises
    UserError for a column that is not there, and Unreachable where a URI does not answer.
    """
    shards = [MdsShard.model_validate(shard) for shard in block.detail or ()]
    for number, file in enumerate(block.files):
        if block.kind == "jsonl":
            yield from _lines(file, block, columns)
        elif block.kind == "mds":
            yield from _samples(file, shards[number], columns)
        else:
            assert block.kind in RECORD_KINDS, block.kind
            yield from _rows(file, block, columns)


def _rows(file: SourceFile, block: InputBlock, columns: Mapping[str, str]) -> Iterator[SourceRecord]:
    row = block.first_row
    try:
        for batch in record_batches(file, block, columns, ROWS):
            for first in range(0, batch.num_rows, ROWS):
                for values in _values(batch.slice(first, ROWS), list(columns.values()), file, row):
                    yield values
                    row += 1
    except BadRecord as record:  # of the file: the rest of it is left out
        place = f"{file.place}, the rest from row {row:,} on" if row else file.place
        yield SourceRecord(place, problem=BadRecord(str(record), place, record.reason))


def record_batches(
    file: SourceFile, block: InputBlock, columns: Mapping[str, str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Iterate over columns of a block's Arrow or Parquet file, of Parquet at most `rows` rows at a time."""
    if block.kind == "arrow":
        return arrow_batches(file, columns, block.start, block.stop)
    groups = None if block.stop is None else range(block.start, block.stop)
    return parquet_batches(file, columns, rows, groups)


def _values(batch: pa.RecordBatch, names: list[str], file: SourceFile, first: int) -> Iterator[SourceRecord]:
    """Iterate over the records of a few rows; `first`: the number of the first one in its file."""
    try:
        lists = [column.to_pylist() for column in batch.columns]
    except UnicodeDecodeError:
        lists = []
    for row in range(batch.num_rows):
        place = f"{file.place}, row {first + row}"
        try:
            if lists:
                yield SourceRecord(place, tuple(values[row] for values in lists))
            else:
                yield SourceRecord(place, tuple(column[row].as_py() for column in batch.columns))
        except UnicodeDecodeError as error:
            problem = BadRecord.at(place, f"is not UTF-8 ({error})", "write the file again with text in UTF-8")
            yield SourceRecord(place, problem=problem)


def _lines(file: SourceFile, block: InputBlock, columns: Mapping[str, str]) -> Iterator[SourceRecord]:
    try:
        for number, (begin, line) in enumerate(lines_between(file, block.start, block.stop), start=1):
            place = f"{file.place}, line {number}" if not block.start else f"{file.place}, the line at byte {begin:,}"
            try:
                values = parse_line(line, begin, file.place, place, dict(columns))
            except BadRecord as record:
                yield SourceRecord(place, problem=record)
            else:
                if values is not None:
                    yield SourceRecord(place, values)
    except OSError as error:
        reason = f"no file that can be read ({first_line(error)})"
        yield SourceRecord(file.place, problem=BadRecord.at(file.place, reason, "copy it again"))


def _samples(file: SourceFile, shard: MdsShard, columns: Mapping[str, str]) -> Iterator[SourceRecord]:
    number = 0
    try:
        for values in mds_samples(file, shard, columns):
            place, number = f"{file.place}, sample {number}", number + 1
            if isinstance(values, BadRecord):
                yield SourceRecord(place, problem=values)
            else:
                yield SourceRecord(place, values)
    except BadRecord as record:
        place = f"{file.place}, the rest from sample {number:,} on" if number else file.place
        yield SourceRecord(place, problem=BadRecord(str(record), place, record.reason))
