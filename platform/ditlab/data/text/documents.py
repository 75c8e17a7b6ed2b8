"""Documents of text files, JSON lines and Parquet: streamed. Those that cannot be read are left out and counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from ditlab.data.source_files import BadRecord, file_problem, visible_name
from ditlab.data.text.pieces import Document
from ditlab.data.text.readers import READERS
from ditlab.errors import UserError, first_line

LISTED = 5
"""Files and records that cannot be read, listed in a store's note."""
_KNOWN = ", ".join(READERS)


@dataclass
class LeftOut:
    """Records of a corpus that cannot be read, as its last reading found them."""

    num: int = 0
    first: list[BadRecord] = field(default_factory=list)
    """The first of them, at most LISTED."""

    def add(self, record: BadRecord) -> None:
        """Count a record."""
        self.num += 1
        if len(self.first) < LISTED:
            self.first.append(record)

    def clear(self) -> None:
        """Begin anew."""
        self.num = 0
        self.first.clear()


@dataclass(frozen=True)
class TextFiles:
    """Documents of a file or of a folder, which is searched to its depth and sorted by path.

    `.txt`: a file is a document. `.jsonl`: one a line, under a key. `.parquet`: one a row, in a column. UTF-8; a byte
    order mark at a file's start is left out. A document that cannot be read costs itself alone.
    """

    source: Path
    column: str = "text"
    unreadable: Literal["skip", "refuse"] = "skip"
    """Treatment of a document that cannot be read."""
    _bad: LeftOut = field(default_factory=LeftOut, init=False, repr=False, compare=False)

    @property
    def origin(self) -> str:
        """Name of the corpus in messages."""
        return f"--source={self.source}"

    @cached_property
    def files(self) -> list[Path]:
        """Files of documents. Raises UserError where there are none."""
        if not self.source.is_dir():
            if self.source.suffix not in READERS:
                raise UserError(f"{self.origin} is no {_KNOWN} file; rename it, or name another.")
            return [self.source]
        found = [file for file in self._named if file not in self._problems]
        if not found:
            listed = f" ({self.left_out})" if self.left_out else ""
            raise UserError(f"{self.origin} holds no {_KNOWN} file{listed}; name a file, or a folder that holds some.")
        return found

    @property
    def left_out(self) -> str:
        """Files of a folder that cannot be opened, and records that the last reading could not read, with the reasons.

        Files are pipes, devices, links that lead nowhere.
        """
        problems = self._problems if self.source.is_dir() else {}
        listed = [f"{file.relative_to(self.source)}: {reason}" for file, reason in problems.items()]
        num = len(listed) + self._bad.num
        listed += [f"{record.place}: {record.reason}" for record in self._bad.first]
        if not num:
            return ""
        more = f", and {num - LISTED:,} more" if num > LISTED else ""
        return visible_name(f"{num:,} left out: {', '.join(listed[:LISTED])}{more}")

    @cached_property
    def _named(self) -> list[Path]:
        return sorted(file for file in self.source.rglob("*") if file.suffix in READERS and not file.is_dir())

    @cached_property
    def _problems(self) -> dict[Path, str]:
        return {file: reason for file in self._named if (reason := file_problem(file))}

    def documents(self) -> Iterator[Document]:
        """Iterate over the documents, each in blocks that must be used up before the next.

        Raises UserError for a file whose disk fails, and the first BadRecord where there is no document beside it, or
        none may be left out.
        """
        self._bad.clear()
        num = 0
        for file in self.files:
            with _naming(file):
                for document in READERS[file.suffix](file, self.column, self._leave_out):
                    num += 1
                    yield document
        if self._bad.num and not num:
            raise self._bad.first[0]

    def _leave_out(self, record: BadRecord) -> None:
        if self.unreadable == "refuse":
            raise record
        inside = record.place.removeprefix(f"{self.source}/") if self.source.is_dir() else Path(record.place).name
        self._bad.add(BadRecord(str(record), inside, record.reason))


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Turn the errors of reading a file in the body into UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}); check the file.") from error
