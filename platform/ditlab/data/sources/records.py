"""Records of a block of a source, whatever its kind: values of columns, or what is wrong with them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.source_files import BadRecord
from ditlab.data.sources.arrow_streams import arrow_batches
from ditlab.data.sources.json_lines import lines_between, parse_line
from ditlab.data.sources.mds import MdsShard, mds_samples
from ditlab.data.sources.parquet import parquet_batches
from ditlab.errors import first_line

if TYPE_CHECKING:
    import pyarrow as pa

RecordKind = Literal["parquet", "arrow", "jsonl", "mds"]
"""Kind of a block whose files hold records."""
RECORD_KINDS: tuple[str, ...] = get_args(RecordKind)
ROWS = 64
"""Rows of a table that are read at a time: a web page each, a few hundred kilobytes together."""


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
        for batch in _batches(file, block, columns):
            for first in range(0, batch.num_rows, ROWS):
                for values in _values(batch.slice(first, ROWS), list(columns.values()), file, row):
                    yield values
                    row += 1
    except BadRecord as record:  # of the file: the rest of it is left out
        place = f"{file.place}, the rest from row {row:,} on" if row else file.place
        yield SourceRecord(place, problem=BadRecord(str(record), place, record.reason))


def _batches(file: SourceFile, block: InputBlock, columns: Mapping[str, str]) -> "Iterator[pa.RecordBatch]":
    if block.kind == "arrow":
        return arrow_batches(file, columns, block.start, block.stop)
    groups = None if block.stop is None else range(block.start, block.stop)
    return parquet_batches(file, columns, ROWS, groups)


def _values(batch: "pa.RecordBatch", names: list[str], file: SourceFile, first: int) -> Iterator[SourceRecord]:
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
