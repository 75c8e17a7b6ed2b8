"""Captions and classes of images: from files beside them, names of folders, or rows of a table of
them.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.import_blocks import InputBlock
from ditlab.data.source_files import BadRecord, SourceFile
from ditlab.data.sources.records import SourceRecord, read_records, text_problem
from ditlab.errors import UserError

PATH = "it the image's path"
"""Name, in the place of a flag's, of what a line's key of the path gives."""
FILE_NAME = "file_name"
"""Key of a line that holds an image's path, as in Hugging Face's metadata.jsonl and
metadata.csv.
"""
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names of Hugging Face's tables of captions and classes, whose paths begin beside them."""
CAPTIONS = "--caption-column"
LABELS = "--label-column"
REMEDIES = {
    "txt": (
        "write one into a .txt file of the same stem, give --caption-from none (or "
        "--label-from folder, for classes)"
    ),
    "metadata": "add a line for it to the metadata file beside it",
    "column": "write one into the column of --caption-column",
}
"""Remedies for an image without a caption, by the origin of captions."""


Line = tuple[str | None, str | None]
"""Caption and class of an image."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?")
"""Names of classes that are numbers; one with a leading zero is a text."""


@dataclass(frozen=True)
class Annotations:
    """Rules that give an image its caption and its class."""

    caption: str
    """`txt`, `metadata`, `column`, or `none`."""
    label: str | None = None
    """`folder`, `cls`, `column`; None for no classes."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Columns of captions and classes, by the flag that names each."""
    lines: Mapping[str, Line] = field(default_factory=dict)
    """Caption and class by path below the source."""
    numbered: Sequence[str] = ()
    """Names of classes by their numbers, where a column of numbers has names."""

    @property
    def companions(self) -> frozenset[str]:
        """Endings of the files of an image's stem that are read for it."""
        endings = {".txt": self.caption == "txt", ".cls": self.label == "cls"}
        return frozenset(ending for ending, is_read in endings.items() if is_read)

    def annotate(
        self, path: str, place: str, image: Any, beside: Mapping[str, bytes], problem: str = ""
    ) -> CaptionedImage:
        """Return the image at `path` below the source, `place` for people, with its caption and
        class.

        `beside`: contents of the files of the same stem, by their ending. `problem`: reason why it
        cannot be read. Raises UserError for an image outside all class folders.
        """
        caption, label = self.lines.get(path, (None, None))
        text = caption_bytes(caption)
        if self.caption == "txt":
            text = beside.get(".txt")
        if self.label == "folder":
            label = folder_class(path, place)
        elif self.label == "cls":
            label = named_class(beside.get(".cls", b""))
        if problem:
            image = None
        return CaptionedImage(place, image, text, label, problem)


def named_class(content: bytes) -> str | None:
    """Return the class that the file beside an image names; None for an empty one."""
    return content.decode(errors="replace").strip() or None


def folder_class(path: str, place: str) -> str:
    """Return the class of an image by its folder. Raises UserError for one outside all folders."""
    folder, slash, _ = path.removeprefix("./").partition("/")
    if not slash:
        raise UserError(
            f"--label-from=folder: {place} lies in no folder below --source; move it into the "
            "folder of its class, or name the folder of the class folders as --source."
        )
    return folder


def caption_text(value: Any) -> Any:
    """Return a caption, the several of a list a line each, None for an empty one; what is neither
    as it is.
    """
    if isinstance(value, list) and all(each is None or isinstance(each, str) for each in value):
        return "\n".join(" ".join(each.split()) for each in value if each) or None
    return value


def caption_bytes(value: Any) -> bytes | None:
    """Return a caption as UTF-8, several of a list a line each; None for null. Raises TypeError for
    another type.
    """
    if isinstance(value, bytes):
        return value
    text = caption_text(value)
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(type(value).__name__)
    return text.encode(errors="surrogatepass")


def class_name(value: Any) -> str | None:
    """Return a class's name: text as it is, whole numbers in digits, also those that a table holds
    as floats, as pandas does beside missing ones; None for null and NaN. Raises TypeError for
    another.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    raise TypeError(type(value).__name__)


def class_table(names: Iterable[str | None]) -> tuple[str, ...]:
    """Order the names of classes, whose numbers are their places: numbers by value, others as text.

    A table of pandas holds the class 8 as 8.0 where another is missing; as text, 10.0 would come
    before it.
    """
    found = set(filter(None, names))
    if all(_NUMBER.fullmatch(name) for name in found):
        return tuple(sorted(found, key=lambda name: (Decimal(name), name)))
    return tuple(sorted(found))


def read_lines(files: Sequence[SourceFile], keys: Mapping[str, str]) -> dict[str, Line]:
    """Read captions and classes by image path from tables of them, such as lines `{"file_name":
    "a/b.png", ...}`.

    `keys`: those of captions and classes, by flag. Paths begin in the folder of the table's file.
    Raises UserError, naming the line, for one of another form, and for an image that has two.
    """
    asked = {PATH: FILE_NAME, **keys}
    lines: dict[str, Line] = {}
    for file in files:
        for record in read_records(InputBlock(0, (file,), file.kind), asked):
            try:
                name, line = _read_line(record, asked)
            except BadRecord as problem:
                raise replace(record, problem=problem).error() from None
            path = str(PurePosixPath(file.name).parent / name.replace("\\", "/"))
            if path in lines:
                raise UserError(
                    f"{file.place}, {record.where}: names {path} a second time; remove one of "
                    "the lines."
                )
            lines[path] = line
    return lines


def _read_line(record: SourceRecord, keys: Mapping[str, str]) -> tuple[str, Line]:
    """Return a line's path, with its caption and class. Raises BadRecord for one of another
    form.
    """
    if record.problem:
        raise record.problem
    found = dict(zip(keys, record.values, strict=True))
    problem = text_problem(PATH, FILE_NAME, found[PATH])
    caption = caption_text(found.get(CAPTIONS))
    if CAPTIONS in keys and not problem:
        problem = text_problem(CAPTIONS, keys[CAPTIONS], caption)
    if problem:
        raise problem
    try:
        return found[PATH], (caption, class_name(found.get(LABELS)))
    except TypeError as error:
        finding = f"'{keys[LABELS]}' holds a {error}, no class"
        raise BadRecord(finding, "write text or a whole number there") from error
