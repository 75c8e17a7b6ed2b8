"""Records of a source, read from numbered blocks of its files: Parquet, Arrow, CSV, JSON lines, MosaicML's MDS.

Small files are put together, large ones are cut by row groups, batches or bytes. A record is the values of columns, or
what is wrong with them. Folders that the Hugging Face library `datasets` has saved are found without the library.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import PurePosixPath
from typing import Any

from ditlab.data.import_blocks import InputBlock, group_files
from ditlab.data.source_files import BadRecord, SourceFile, read_json, read_part
from ditlab.data.sources.lines import csv_rows, json_rows
from ditlab.data.sources.mds import INDEX, MdsShard, mds_samples, read_index, shard_file
from ditlab.data.sources.tables import UNREADABLE, arrow_batches, arrow_rows, parquet_batches, parquet_rows
from ditlab.data.sources.tars import tar_members
from ditlab.data.stores.receipt import DAMAGED, NO_RECORD, DroppedRecord, DroppedRecords, ReceiptLevel
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import MIB

KINDS = ("arrow", "csv", "jsonl", "mds", "parquet", "tsv")
"""Kinds of files that hold records, named by their ending; those of MDS come with their index alone."""
UNPACKED = ("csv", "jsonl", "tsv", "txt")
"""Kinds of files that are read in their order, so that they may be compressed."""
INDICES = ("index.json", "state.json", "dataset_info.json", "dataset_dict.json")
"""Names of files about the others of a folder, of MDS and of `datasets`."""
TEXT_KINDS = (*KINDS, "txt")
"""Kinds of files that hold documents."""
BEGINNING_BYTES = MIB
"""Bytes of text by whose lines those of a file are estimated."""
STATE, SPLITS = "state.json", "dataset_dict.json"
"""Files of `datasets.save_to_disk`: of a data set, and of a folder of several by split."""
ROWS_OF = {"parquet": parquet_rows, "arrow": arrow_rows}
"""Functions that count the rows of a table's parts, by kind."""
ROWS = 64
"""Rows of a table that are read at a time, unless a reader says otherwise: a web page each."""
_THREADS = 16
"""Files whose ends are read at once: behind a URI each read waits for an answer."""


@dataclass(frozen=True)
class RecordFile:
    """File of a source that holds records."""

    kind: str
    """One of TEXT_KINDS."""
    file: SourceFile
    detail: Any = None
    """Its shard of an MDS index, as values of JSON."""


def record_files(source: str, listing: Sequence[SourceFile], kinds: Sequence[str] = KINDS) -> list[RecordFile]:
    """Return the files of some kinds, a folder at a time in the order of their names, an index's in the index's.

    Raises UserError for an index or folder that is not whole, and for a folder of several splits.
    """
    files = {file.name: file for file in listing}
    if SPLITS in files:
        _refuse_splits(source, read_json(files[SPLITS]))
    indexed = _of_indices(files)
    owned = {each.file.name for found in indexed.values() for each in found}
    chosen: list[RecordFile] = []
    for file in sorted(listing, key=lambda each: each.name.split("/")):
        kind = file.suffix.removeprefix(".")
        if file.name in indexed:
            chosen += indexed[file.name]
        elif file.name not in owned and kind != "mds" and (kind in UNPACKED or not file.compression):
            chosen.append(RecordFile(kind, file))
    return [each for each in chosen if each.kind in kinds]


def _refuse_splits(source: str, content: Any) -> None:
    """Raise UserError for the content of a file that names several splits of a data set."""
    names = content.get("splits") if isinstance(content, dict) else None
    if isinstance(names, list) and names:
        one = f"{source.rstrip('/')}/{names[0]}"
        listed = ", ".join(map(str, names))
        raise UserError(f"--source={source} holds splits ({listed}); name one of them, such as --source={one}.")


def files_level(
    listing: Sequence[SourceFile], used: Mapping[str, Sequence[SourceFile]], reasons: Mapping[str, str] | None = None
) -> tuple[ReceiptLevel, list[DroppedRecord]]:
    """Count the files of a source: those `used`, by what for, those about others, and those that are left out.

    `reasons`: those of files, by name, that are left out for another reason than their ending. Returns as well the
    first that are left out.
    """
    purposes = {file: what for what, files in used.items() for file in files}
    dropped = DroppedRecords()
    counts = Counter(dict.fromkeys(used, 0))
    for file in listing:
        if file in purposes:
            counts[purposes[file]] += 1
        elif not file.set_aside and PurePosixPath(file.name).name in INDICES:
            counts["indices"] += 1
        else:
            reason = file.set_aside or (reasons or {}).get(file.name) or not_read(file.ending)
            dropped.add(DroppedRecord(place=file.shown, reason=reason))
    unit = "members" if listing and listing[0].in_zip else "files"
    return ReceiptLevel(unit=unit, used=counts, left_out=dropped.counts), dropped.first


def not_read(ending: str) -> str:
    """Return the reason of files whose ending no reader takes."""
    return f"not read ({ending})"


def _of_indices(files: Mapping[str, SourceFile]) -> dict[str, list[RecordFile]]:
    """Return the files that each index names, by its name, but for those that an index of a folder above names."""
    indexed: dict[str, list[RecordFile]] = {}
    owned: set[str] = set()
    for file in sorted(files.values(), key=lambda each: each.name.count("/")):
        if (found := _of_index(file, files)) is not None:
            # the library merges the indices of folders into one over them
            indexed[file.name] = [each for each in found if each.file.name not in owned]
            owned.update(each.file.name for each in found)
    return indexed


def _of_index(file: SourceFile, files: Mapping[str, SourceFile]) -> list[RecordFile] | None:
    """Return the files that an index names; None for what is no index."""
    name = file.name.rpartition("/")[2]
    if name == INDEX and (shards := read_index(file)) is not None:
        return [RecordFile("mds", shard_file(file, shard, files), shard.model_dump(mode="json")) for shard in shards]
    content = read_json(file) if name == STATE else None
    if not isinstance(content, dict) or not isinstance(named := content.get("_data_files"), list):
        return None
    if content.get("_indices_data_files") or content.get("_indices_files"):
        raise UserError(f"{file.place} orders its rows by a file of indices; save it again with a newer `datasets`.")
    found = []
    for each in named:
        data = str(each.get("filename") if isinstance(each, dict) else each)
        path = str(PurePosixPath(file.name).parent / data)
        if path not in files:
            raise UserError(f"{file.place} names {data}, which is not there; copy the folder whole.")
        found.append(RecordFile("arrow", files[path]))
    return found


def record_blocks(files: Sequence[RecordFile], most_bytes: int) -> list[InputBlock]:
    """Cut files into blocks of about `most_bytes` of input, in their order; they depend on the files alone."""
    with ThreadPoolExecutor(_THREADS) as pool:
        ranges = list(pool.map(lambda each: _ranges(each, most_bytes), files))
    blocks: list[InputBlock] = []
    cut = zip(files, ranges, strict=True)
    for (kind, is_cut), run in groupby(cut, lambda pair: (pair[0].kind, bool(pair[1]))):
        if is_cut:
            for each, parts in run:
                blocks += [InputBlock(len(blocks) + n, (each.file,), kind, *part) for n, part in enumerate(parts)]
            continue
        whole = [each for each, _ in run]
        details = iter(each.detail for each in whole)
        for group in group_files([each.file for each in whole], most_bytes):
            own = [next(details) for _ in group]
            blocks.append(InputBlock(len(blocks), group, kind, detail=None if own[0] is None else own))
    return blocks


def _ranges(each: RecordFile, most_bytes: int) -> list[tuple[int, int, int]]:
    """Return start, stop and first row of the parts of a large file; [] for a file that is read whole.

    Row groups of Parquet, batches of Arrow, bytes of the others; rows are 0 where they have no numbers. A damaged file
    is read whole, and so is one of MDS, or of Arrow behind a URI, whose batches are found only by reading it.
    """
    file = each.file
    if file.size <= most_bytes or file.compression or file.in_zip:
        return []
    if each.kind in ("jsonl", "txt"):
        num = -(-file.size // most_bytes)
        cuts = [number * file.size // num for number in range(num + 1)]
        return [(start, stop, 0) for start, stop in pairwise(cuts)]
    rows_of = ROWS_OF.get(each.kind)
    if rows_of is None or (each.kind == "arrow" and file.is_remote):
        return []
    try:
        rows = list(accumulate(rows_of(file), initial=0))
    except UNREADABLE:
        return []
    allowed = max(1, rows[-1] * most_bytes // file.size)  # few parts are larger than that
    cuts = [0]
    for place in range(1, len(rows)):
        if place - cuts[-1] > 1 and rows[place] - rows[cuts[-1]] > allowed:
            cuts.append(place - 1)
    return [(start, stop, rows[start]) for start, stop in pairwise([*cuts, len(rows) - 1])]


def share_read(blocks: Sequence[InputBlock], sizes: Sequence[int], limit: int, found: int) -> float | None:
    """Return about the share of a source that was read, by the first file; None for several kinds, or packed text.

    `sizes`: records that were read of each block, bytes of text, of which no more than about `limit` are; `found`: all
    records. The share is that of the records, of text files that of the bytes.
    """
    files = list(dict.fromkeys(file for block in blocks for file in block.files))
    size = sum(file.size for file in files)
    kind = blocks[0].kind
    if len(sizes) == len(blocks) and max(sizes) < limit:
        return 1.0
    is_packed = kind in UNPACKED and files[0].compression
    if is_packed or len({block.kind for block in blocks}) > 1:
        return None
    if kind == "txt":
        return min(1.0, sum(sizes) / size)
    if kind == "mds":
        return found / sum(shard["samples"] for block in blocks for shard in block.detail)
    if kind == "images":
        return found / len(files)
    return _share_by_first(kind, files[0], size, found)


def _share_by_first(kind: str, file: SourceFile, size: int, found: int) -> float | None:
    """Return the share of `found` records, where all `size` bytes hold as many as the first file, or its beginning."""
    num_bytes = file.size
    try:
        if kind == "tar":
            held = sum(1 for _ in tar_members(file, [], wanted=()))
        elif kind in ROWS_OF:
            held = sum(ROWS_OF[kind](file))
        else:
            text = read_part(file, 0, BEGINNING_BYTES)
            num_bytes = len(text)
            held = text.count(b"\n")
    except UNREADABLE:
        return None
    return min(1.0, found * num_bytes / (held * size)) if held else None


@dataclass(frozen=True)
class SourceRecord:
    """Record of a source, or all of a file behind its damage."""

    file: SourceFile
    where: str
    """Place in the file, for people: `row 12`; empty for a whole file."""
    values: tuple[Any, ...] = ()
    """Values of the columns that were asked for, in their order: text as str, images as bytes, null as None."""
    problem: BadRecord | None = None
    """Finding why it cannot be read; None for a record with values."""
    is_rest: bool = False
    """True for a damaged file, or all of it behind the damage."""

    @property
    def place(self) -> str:
        """Place for people, below the source: `data/a.parquet, row 12`."""
        return ", ".join(filter(None, [self.file.shown, self.where]))

    def dropped(self, problem: BadRecord | None = None) -> DroppedRecord:
        """Return what a receipt says of it: of its own problem, unless another is given."""
        problem = problem or self.problem
        return DroppedRecord(place=self.place, reason=DAMAGED if self.is_rest else NO_RECORD, detail=str(problem))

    def error(self, problem: BadRecord | None = None) -> UserError:
        """Return the error for a source whose records must all be read."""
        problem = problem or self.problem
        assert problem is not None, "it can be read"
        where = ", ".join(filter(None, [self.file.place, self.where]))
        return UserError(f"{where}: {problem}; {problem.remedy}.")


def read_records(block: InputBlock, columns: Mapping[str, str], rows: int = ROWS) -> Iterator[SourceRecord]:
    """Iterate over a block's records: columns, or keys of JSON lines, by the flag that names each.

    `rows`: those of a table that are read at a time. A record that cannot be read, and all behind the damage of a file,
    is one with a problem. Raises UserError for a column that is not there, and Unreachable where a URI does not answer.
    """
    for number, file in enumerate(block.files):
        where = f"row {block.first_row - 1}" if block.first_row else ""
        try:
            for where, values in _places(block, number, columns, rows):
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
    block: InputBlock, number: int, columns: Mapping[str, str], rows: int
) -> Iterator[tuple[str, tuple[Any, ...] | BadRecord]]:
    """Iterate over the records of a file of a block, by its number, each with its place in the file."""
    file = block.files[number]
    if block.kind == "jsonl":
        yield from json_rows(file, columns, block.start, block.stop)
        return
    what = "row"
    found: Iterator[tuple[Any, ...] | BadRecord]
    if block.kind == "mds":
        what = "sample"
        found = mds_samples(file, MdsShard.model_validate(block.detail[number]), columns)
    elif block.kind in ("csv", "tsv"):
        found = csv_rows(file, columns)
    else:
        found = _rows(file, block, columns, rows)
    for place, values in enumerate(found, start=block.first_row):
        yield f"{what} {place}", values


def text_problem(flag: str, column: str, value: Any) -> BadRecord | None:
    """Return the finding on a value, of the column of a flag, that is no text of UTF-8; None for text."""
    if not isinstance(value, str):
        held = "null" if value is None else f"a {type(value).__name__}"
        return BadRecord(
            f"'{column}' holds {held}, not text", f"write text there, leave the record out, or give {flag}"
        )
    if surrogate := re.search("[\\ud800-\\udfff]", value):
        place = f"character {surrogate.start()}"
        return BadRecord(f"'{column}' holds half of a surrogate pair at {place}, which is no text", "write it again")
    return None


def _rows(
    file: SourceFile, block: InputBlock, columns: Mapping[str, str], rows: int
) -> Iterator[tuple[Any, ...] | BadRecord]:
    """Iterate over the rows of a block's Parquet or Arrow file, or what is wrong with one."""
    if block.kind == "arrow":
        batches = arrow_batches(file, columns, block.start, block.stop)
    else:
        assert block.kind == "parquet", block.kind
        batches = parquet_batches(file, columns, rows, None if block.stop is None else range(block.start, block.stop))
    for batch in batches:
        for first in range(0, batch.num_rows, rows):
            part = batch.slice(first, rows)
            try:
                yield from zip(*(column.to_pylist() for column in part.columns), strict=True)
            except UnicodeDecodeError:  # of one row at least
                for row in range(part.num_rows):
                    try:
                        values = tuple(column[row].as_py() for column in part.columns)
                    except UnicodeDecodeError as error:
                        yield BadRecord(f"is not UTF-8 ({error})", "write it again")
                    else:
                        yield values
