"""Side index of a long journal: its content up to an offset, so that a reader parses only what came after.

The journal is the truth. The index is used only while the SHA-256 of the journal up to that offset is the recorded one;
deleting it costs time and nothing else. Its file is a line of JSON with the hashes, then a safetensors file.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import NonNegativeInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ditlab.storage.files import add_checksum, is_intact, replacing, without_checksum
from ditlab.storage.plain_files import MIB, open_regular_file
from ditlab.tracking.journal import LARGEST_JOURNAL, JournalContent, MetricPoints, read_journal

MIN_GROWTH = 4 * MIB
"""Bytes of a journal that are parsed without an index: a tenth of a second."""

_FORMAT = 1
_LONGEST_HEAD = 64 * MIB


class _Head(TypedDict):
    format: int
    journal_bytes: NonNegativeInt
    journal_sha256: str
    body_sha256: str
    num_damaged: NonNegativeInt
    names: list[str]
    events: list[dict[str, Any]]


_HEAD = TypeAdapter(_Head)


def side_index_path(journal: Path) -> Path:
    """The path of a journal's index."""
    return journal.with_suffix(".index")


def read_content(path: Path, save_index: bool = True) -> JournalContent:
    """Read a journal's content, and index it where much of it had to be parsed. Raises OSError where there is none.

    `save_index` false: write nothing.
    """
    with open_regular_file(path, LARGEST_JOURNAL) as file:
        content = _load(path, file) or JournalContent()
        begin, is_whole = content.end, True
        for line in read_journal(file, begin):
            content.add(line)
            is_whole = line.is_whole
        if save_index and is_whole and content.end - begin >= MIN_GROWTH:
            with suppress(OSError):  # a full disk, or a folder that cannot be written
                _save(path, file, content)
    return content


def damaged_lines(number: int) -> str:
    """The sentence on lines of a journal that were passed over."""
    return f"{number} damaged line{'s' if number > 1 else ''} passed over; the others count."


def _save(path: Path, journal: BinaryIO, content: JournalContent) -> None:
    from safetensors.numpy import save

    columns: dict[str, array[Any]] = {"steps": content.steps, "times": content.times}
    for number, points in enumerate(content.metrics.values()):
        columns |= {f"{number}.rows": points.rows, f"{number}.values": points.values}
    body = save({name: _as_numpy(column) for name, column in columns.items()})
    head = {
        "format": _FORMAT,
        "journal_bytes": content.end,
        "journal_sha256": _prefix_hash(journal, content.end),
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "num_damaged": content.num_damaged,
        "names": list(content.metrics),
        "events": content.events,
    }
    with replacing(side_index_path(path), durable=False) as file:
        file.write(add_checksum(json.dumps(head, separators=(",", ":")).encode()) + b"\n")
        file.write(body)


def _load(path: Path, journal: BinaryIO) -> JournalContent | None:
    """The content that the index holds; None where there is no index, or it is damaged or of another journal."""
    size = journal.seek(0, os.SEEK_END)
    try:
        with open_regular_file(side_index_path(path), limit=2 * size + MIB) as file:
            line, body = file.readline(_LONGEST_HEAD).rstrip(b"\n"), file.read()
        if not is_intact(line):
            return None
        head = _HEAD.validate_json(without_checksum(line))
    except (OSError, ValidationError):
        return None
    is_valid = (
        head["format"] == _FORMAT
        and 0 < head["journal_bytes"] <= size
        and hashlib.sha256(body).hexdigest() == head["body_sha256"]
        and _prefix_hash(journal, head["journal_bytes"]) == head["journal_sha256"]
    )
    return _content(head, body) if is_valid else None


def _content(head: _Head, body: bytes) -> JournalContent | None:
    """The content that is indexed; None where the columns are none of a journal's."""
    from safetensors import SafetensorError  # only here: most journals have no index
    from safetensors.numpy import load

    try:
        columns = load(body)
        if not _is_consistent(columns, len(head["names"])):
            return None
    except (SafetensorError, KeyError, ValueError):
        return None
    metrics = {
        name: MetricPoints(_as_array("q", columns[f"{number}.rows"]), _as_array("d", columns[f"{number}.values"]))
        for number, name in enumerate(head["names"])
    }
    steps, times = _as_array("q", columns["steps"]), _as_array("q", columns["times"])
    return JournalContent(steps, times, metrics, head["events"], head["num_damaged"], head["journal_bytes"])


def _is_consistent(columns: dict[str, Any], num: int) -> bool:
    """Return True if each of `num` metrics has a value for each of its rows, and each row a step and a time."""
    steps = columns["steps"]
    rows = [columns[f"{number}.rows"] for number in range(num)]
    values = [columns[f"{number}.values"] for number in range(num)]
    whole = all(column.dtype == "int64" and column.ndim == 1 for column in (steps, columns["times"], *rows))
    return (
        whole
        and all(column.dtype == "float64" for column in values)
        and len(columns["times"]) == len(steps)
        and all(len(row) == len(value) for row, value in zip(rows, values, strict=True))
        and all(row.min() >= 0 and row.max() < len(steps) for row in rows if len(row))
    )


def _prefix_hash(journal: BinaryIO, num_bytes: int) -> str:
    digest, left = hashlib.sha256(), num_bytes
    journal.seek(0)
    while left and (chunk := journal.read(min(left, MIB))):
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()


def _as_numpy(column: array[Any]) -> Any:
    import numpy as np

    return np.frombuffer(column, dtype=np.dtype("int64" if column.typecode == "q" else "float64"))


def _as_array(typecode: str, column: Any) -> array[Any]:
    found = array(typecode)
    found.frombytes(column.tobytes())
    return found
