"""Reading a journal: whole, from an offset on, or its end. Torn and damaged lines are passed over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ditlab.storage.checksums import has_checksum
from ditlab.storage.plain_files import MIB, open_plain
from ditlab.tracking.journal.format import JournalRecord, parse_record

LONGEST_LINE = 4 * MIB
"""Bytes; the longest line of a real run, its parameters, has some 20 KB."""
LARGEST_JOURNAL = 64 << 30
"""Bytes: a hundred million steps."""


class JournalLine(NamedTuple):
    """One line of a journal."""

    begin: int
    end: int
    """Offsets in the file, in bytes."""
    record: JournalRecord | None
    """None for a damaged line."""
    is_whole: bool = True
    """False for a last line without a newline, which may be in writing."""
    is_checked: bool = True
    """False for a line without a checksum, as an earlier version wrote it."""


def read_journal(file: BinaryIO, begin: int = 0) -> Iterator[JournalLine]:
    """Every line of an open journal from an offset on, also the damaged ones; reads at most `LONGEST_LINE` at once."""
    file.seek(begin)
    while line := file.readline(LONGEST_LINE):
        end = begin + len(line)
        if line.endswith(b"\n"):
            yield JournalLine(begin, end, parse_record(line), is_checked=has_checksum(line[:-1]))
        elif len(line) < LONGEST_LINE:
            yield JournalLine(begin, end, parse_record(line), is_whole=False)
        else:
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
                end += len(line)
            yield JournalLine(begin, end, None, is_whole=line.endswith(b"\n"))
        begin = end


def read_records(path: Path) -> Iterator[JournalRecord]:
    """Every whole record, in order. Raises OSError where there is no journal."""
    with open_plain(path, LARGEST_JOURNAL) as file:
        for line in read_journal(file):
            if line.record is not None:
                yield line.record


def read_lines(path: Path, begin: int, end: int) -> Iterator[JournalLine]:
    """Every whole line between two offsets, in bytes."""
    with open_plain(path, LARGEST_JOURNAL) as file:
        for line in read_journal(file, begin):
            if not line.is_whole or line.end > end:
                return
            yield line


def read_record_at(path: Path, offset: int) -> JournalRecord | None:
    """The record of the line that begins at an offset; None for a damaged line."""
    with open_plain(path, LARGEST_JOURNAL) as file:
        return next((line.record for line in read_journal(file, offset)), None)


class JournalTail(NamedTuple):
    """End of a journal."""

    records: list[JournalRecord]
    num_damaged: int
    """Lines that were passed over."""


def read_tail(path: Path, num_bytes: int) -> JournalTail:
    """The records among the last bytes. Raises OSError where there is no journal."""
    with open_plain(path, LARGEST_JOURNAL) as file:
        begin = max(0, file.seek(0, os.SEEK_END) - num_bytes)
        if begin:  # to the beginning of a line
            file.seek(begin - 1)
            begin += len(file.readline(num_bytes + 1)) - 1
        lines = list(read_journal(file, begin))
    records = [line.record for line in lines if line.record is not None]
    return JournalTail(records, sum(line.record is None and line.is_whole for line in lines))


def count_lines(path: Path, begin: int) -> int:
    """Number of whole lines from an offset on; 0 where there is no journal, or none that can be read."""
    try:
        with open_plain(path, LARGEST_JOURNAL) as file:
            file.seek(begin)
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(MIB), b""))
    except OSError:
        return 0
