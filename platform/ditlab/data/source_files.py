"""Files of an import's source: whether they can be read, their lines, and their names for people."""

import os
from collections.abc import Iterator
from pathlib import Path

from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import MIB, open_plain

LINE_BYTES = 256 * MIB
"""Most bytes of a line."""


class BadRecord(UserError):
    """A record of a source that cannot be read: a line, a row, a file, or the rest of one. The others still can."""

    def __init__(self, message: str, place: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.place = place
        """Place of the record, for people: a file, and its line or row."""
        self.reason = reason
        """Reason why it cannot be read, without its place."""

    @classmethod
    def at(cls, place: str, reason: str, remedy: str) -> "BadRecord":
        """Make the error `place: reason; remedy.`"""
        return cls(f"{place}: {reason}; {remedy}.", place, reason)


def not_utf8(start: int, error: UnicodeDecodeError) -> str:
    """Return the reason for bytes that are not UTF-8, in text that begins at offset `start` of its file or place."""
    return f"is not UTF-8: byte {error.object[error.start]:#04x} at offset {start + error.start} (from 0)"


CONVERT = "convert it, for one with `iconv -f latin1 -t utf-8`"
"""Remedy for text that is not UTF-8."""


def file_problem(file: Path) -> str:
    """Say why a file cannot be opened: `a named pipe, no plain file`; empty where it can. Never waits for one."""
    try:
        open_plain(file, follow=True).close()
    except OSError as error:
        return first_line(error)
    return ""


def file_lines(file: Path) -> Iterator[bytes]:
    """Iterate over a file's lines. Raises OSError as `open_plain` does, and UserError for a line of no end."""
    with open_plain(file, follow=True) as source:
        number = 0
        while line := source.readline(LINE_BYTES + 1):
            number += 1
            if len(line) > LINE_BYTES:
                raise UserError(
                    f"{file}, line {number}: has more than {LINE_BYTES:,} bytes; write one document a line, and longer "
                    "ones into .txt files."
                )
            yield line


def real_path(source: Path) -> Path:
    """Return the absolute path of a source without links, as far as they lead somewhere."""
    return Path(os.path.realpath(source))


def visible_name(name: str) -> str:
    r"""Return a file's name as text that UTF-8 can hold: bytes that are none become `\udcff` and the like."""
    return name.encode(errors="backslashreplace").decode()
