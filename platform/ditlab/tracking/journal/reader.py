"""Reading a journal: whole, from an offset on, or its end. Torn and damaged lines are passed over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ditlab.tracking.journal.format import JournalRecord, parse_record

_CHUNK_BYTES = 1 << 20


class JournalLine(NamedTuple):
    """One whole line of a journal."""

    begin: int
    end: int
    """Offsets in the file, in bytes."""
    record: JournalRecord | None
    """None for a damaged line."""


def read_records(path: Path) -> Iterator[JournalRecord]:
    """Every whole record, in order. Raises OSError where there is no journal."""
    with path.open("rb") as file:
        for line in file:
            if (record := parse_record(line)) is not None:
                yield record


def read_lines(path: Path, begin: int, end: int) -> Iterator[JournalLine]:
    """Every whole line between two offsets, in bytes."""
    with path.open("rb") as file:
        file.seek(begin)
        for line in file:
            if not line.endswith(b"\n") or begin + len(line) > end:
                return
            yield JournalLine(begin, begin + len(line), parse_record(line))
            begin += len(line)


def read_record_at(path: Path, offset: int) -> JournalRecord | None:
    """The record of the line that begins at an offset; None for a damaged line."""
    with path.open("rb") as file:
        file.seek(offset)
        return parse_record(file.readline())


def read_tail(path: Path, num_bytes: int) -> list[JournalRecord]:
    """The whole records among the last bytes; [] where there is no journal."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - num_bytes))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    # The first line is cut unless the whole file was read; a cut one does not parse.
    return [record for line in lines if line and (record := parse_record(line)) is not None]


def count_lines(path: Path, begin: int) -> int:
    """Number of whole lines from an offset on; 0 where there is no journal."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(begin)
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))
