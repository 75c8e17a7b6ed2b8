"""Durable files: whole files and JSON lines which outlive a killed process, a full disk and a power
cut; checksums.

The checksum of a JSON object is its last field, `"crc"`: the CRC-32 of the text before it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, BinaryIO
from zlib import crc32

from ditlab.errors import UserError, cannot_write, first_line
from ditlab.storage.plain_files import UnusableFile, open_for_append, parse_json, read_plain

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Numbers of errors by which file systems say that they have no locks."""
_log = logging.getLogger("ditlab.storage")
_STAMP = "# SHA-256 of the lines above: "
_LENGTH = len(b',"crc":"12345678"}')
MAX_LINES_BYTES = 256 << 20
"""Bound of a file of JSON lines that is read whole: a ledger of a million trials."""


def add_checksum(text: bytes) -> bytes:
    """Return the text of a JSON object with its checksum; `text` ends with `}` and has at least one
    field.
    """
    body = text[:-1]
    return b'%b,"crc":"%08x"}' % (body, crc32(body))


def is_intact(text: bytes) -> bool:
    """Return True if a JSON object's text ends with a checksum that is right."""
    body = text[:-_LENGTH]
    return text[-_LENGTH:] == b',"crc":"%08x"}' % crc32(body)


def without_checksum(text: bytes) -> bytes:
    """Return a JSON object's text as it was before `add_checksum`."""
    return text[:-_LENGTH] + b"}"


def stamped(text: str) -> str:
    """Return the text of a file that a person may edit, with its SHA-256 as a comment in a last
    line of its own.
    """
    return f"{text}{_STAMP}{sha256(text.encode()).hexdigest()}\n"


def is_edited(content: bytes) -> bool:
    """Return True if a file was changed since `stamped`; False for one without that last line,
    which a person wrote.
    """
    return _STAMP.encode() in content and not is_as_stamped(content)


def is_as_stamped(content: bytes) -> bool:
    """Return True if a file is as `stamped` made it."""
    text, found, stamp = content.rpartition(_STAMP.encode())
    return bool(found) and stamp.rstrip(b"\n").decode(errors="replace") == sha256(text).hexdigest()


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk, so that files created, renamed or deleted in it stay
    so.
    """
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


def take_lock(file: IO[Any], wait: bool = False) -> bool:
    """Lock an open file until it is closed; False where another process holds it and `wait` is not
    set. A file system without locks gives it always, which is warned of once."""
    operation = fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        _warn_of_no_locks(os.fstat(file.fileno()).st_dev, file.name, first_line(error))
    return True


def lock_fault(path: Path) -> str:
    """Why the file system of an existing file has none of the locks that SQLite needs; empty where
    it has them, or another process holds one.
    """
    try:
        with path.open("ab") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return first_line(error)
    return ""


_devices_without_locks: set[int] = set()


def _warn_of_no_locks(device: int, name: object, reason: str) -> None:
    """Log a warning, once for each file system."""
    if device in _devices_without_locks:
        return
    _devices_without_locks.add(device)
    place = name
    if isinstance(name, int):  # the number of a descriptor
        place = "DITLAB_HOME"
    message = (
        f"the file system of {place} has no locks ({reason}): nothing keeps two processes from "
        "writing there at once, such as a resume beside a training; start one at a time, or mount "
        "it with locks"
    )
    _log.warning("%s", message)


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Turn OSErrors of the body, which writes into a folder, into UserError."""
    try:
        yield
    except OSError as error:
        raise cannot_write(folder, error, "choose another folder") from error


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that takes its place once the body ends, in a single
    rename.

    A reader finds the old content or the new; also after a power cut if `durable`, which waits for
    the disk. Where the body or the disk fails, the old file stays and nothing of the new one is
    left. Raises UnusableFile where `path` is a device, and OSError as the file system does.
    """
    # a rename would deprive the machine of a device, as of /dev/null by root's habit; a link to one
    # may go
    if not path.is_symlink() and (path.is_char_device() or path.is_block_device()):
        raise UnusableFile("a device, no plain file", path)
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
    """Replace a file's content as `replacing` does; returns `path`. Raises OSError where the disk
    refuses.
    """
    with replacing(path) as file:
        file.write(content)
    return path


def write_whole(path: Path, content: bytes) -> Path:
    """Replace a file's content without waiting for the disk: for pictures and pages, which can be
    made again.
    """
    with replacing(path, durable=False) as file:
        file.write(content)
    return path


def ends_torn(descriptor: int) -> bool:
    """Return True if a file of lines, open for reading, ends within a line: its writer was killed,
    or the disk full.
    """
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


@dataclass(frozen=True)
class JsonLines:
    """Content of a file of JSON lines."""

    records: list[dict[str, Any]] = field(default_factory=list)
    """Whole records, in order, without their checksums."""
    num_damaged: int = 0
    """Lines that were skipped: cut short, altered, or not JSON."""


def encode_json_line(record: Mapping[str, Any]) -> bytes:
    """A record with at least one field as a line that ends with a checksum."""
    return add_checksum(json.dumps(record, separators=(",", ":"), allow_nan=False).encode()) + b"\n"


def append_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records, and a newline before them where the last line is torn; they are on the disk
    when this returns.
    """
    with os.fdopen(open_for_append(path), "a+b") as file:
        is_new = file.seek(0, os.SEEK_END) == 0
        file.write(b"\n" * ends_torn(file.fileno()) + b"".join(map(encode_json_line, records)))
        flush_to_disk(file)
    if is_new:
        sync_folder(path.parent)


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record as `append_json_lines` does."""
    append_json_lines(path, [record])


def parse_json_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line, without its checksum; None for a line that is torn or damaged, or has
    no checksum.
    """
    text = line.rstrip(b"\n")
    if not is_intact(text):
        return None
    try:
        record = parse_json(without_checksum(text))
    except ValueError:
        return None
    if isinstance(record, dict) and "crc" not in record:
        return record
    return None


def parse_json_lines(content: bytes) -> JsonLines:
    """Every whole record of a file's content, and the number of damaged lines."""
    parsed = [parse_json_line(line) for line in content.split(b"\n") if line.strip()]
    records = [record for record in parsed if record is not None]
    return JsonLines(records, len(parsed) - len(records))


def read_json_lines(path: Path, limit: int = MAX_LINES_BYTES) -> JsonLines:
    """Read a file of JSON lines as `parse_json_lines` does; nothing where it is missing.

    Raises OSError for a file that cannot be read, UnusableFile among them.
    """
    try:
        return parse_json_lines(read_plain(path, limit))
    except FileNotFoundError:
        return JsonLines()


def folder_size(path: Path) -> int:
    """Bytes of the files below a folder, or of a file. Links count as themselves, what goes
    meanwhile not at all.
    """
    try:
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
        total = 0
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += folder_size(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
        return total
    except OSError:
        return 0


def listing(source: str) -> dict[str, list[int]]:
    """Return size and time of the files of a folder, a file or a pattern, by their names from it
    on. Raises UserError for a source that is not there.
    """
    named = [source]
    if not Path(source).exists():
        named = sorted(glob(source, recursive=True))  # noqa: PTH207 (Path.glob: no absolute ones)
    if not named:
        raise UserError(f"source={source} is not there; correct it.")
    files = [file for each in map(Path, named) for file in (each, *sorted(each.rglob("*")))]
    states = file_states(map(str, files))
    return {os.path.relpath(name, source): state for name, state in states.items()}


def file_states(files: Iterable[str]) -> dict[str, list[int]]:
    """Return size in bytes and time of change, in nanoseconds, of each file that is there."""
    found = {}
    for file in files:
        with suppress(OSError):
            about = Path(file).stat()
            found[file] = [about.st_size, about.st_mtime_ns]
    return found
