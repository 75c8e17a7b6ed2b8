"""Durable files: whole files and JSON lines that outlive a killed process, a full disk and a power cut."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk, so that files created, renamed or deleted in it stay so."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> int:
    """Flush a file's content to the disk; returns its size in bytes."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        os.fsync(file.fileno())
    return size


def flush_to_disk(file: IO[bytes]) -> None:
    """Flush what was written into an open file, through Python's buffer, to the disk."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that takes its place once the body ends, in a single rename.

    A reader finds the old content or the new; also after a power cut if `durable`, which waits for the disk. Where the
    body or the disk fails, the old file stays and nothing of the new one is left.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            if durable:
                flush_to_disk(file)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()  # a full disk would fill with them
        raise
    if durable:
        sync_folder(path.parent)


def write_durably(path: Path, content: bytes) -> Path:
    """Replace a file's content as `replacing` does; returns `path`. Raises OSError where the disk refuses."""
    with replacing(path) as file:
        file.write(content)
    return path


def write_whole(path: Path, content: bytes) -> Path:
    """Replace a file's content without waiting for the disk: for pictures and pages, which can be made again."""
    with replacing(path, durable=False) as file:
        file.write(content)
    return path


def ends_torn(descriptor: int) -> bool:
    """Return True if a file of lines, open for reading, ends within a line: its writer was killed, or the disk full."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record, and a newline before it where the last line is torn; it is on the disk when this returns."""
    with path.open("a+b") as file:
        is_new = file.seek(0, os.SEEK_END) == 0
        file.write(b"\n" * ends_torn(file.fileno()) + json.dumps(record).encode() + b"\n")
        flush_to_disk(file)
    if is_new:
        sync_folder(path.parent)


def parse_json_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None for a torn or damaged line."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole record of a file, in order, without torn and damaged lines; none where the file is missing."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if (record := parse_json_line(line)) is not None:
                yield record
