"""Captions and classes of images: from files beside them, names of files and folders, or rows of a table of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.import_blocks import InputBlock
from ditlab.data.source_files import CONVERT, BadRecord, SourceFile, visible_name
from ditlab.data.sources.records import read_records, text_problem
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import parse_json

FILE_NAME = "file_name"
"""Key of a line that holds an image's path, as in Hugging Face's metadata.jsonl and metadata.csv."""
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names of Hugging Face's tables of captions and classes, whose paths begin beside them."""
REMEDIES = {
    "txt": "write one into a .txt file of the same stem, give --caption-from (or --label-from folder, for classes)",
    "json": "write one into key '{column}' (--caption-column) of a .json file of the same stem",
    "folder": "put it into a folder below --source that its caption names",
    "stem": "name the file by its caption",
    "lines": "add a line for it to {lines}",
    "metadata": "add a line for it to the metadata file beside it",
    "column": "write one into column '{column}' (--caption-column)",
}
"""Remedies for an image without a caption."""


@dataclass(frozen=True)
class Annotations:
    """Rules that give an image its caption and its class."""

    caption: str
    """`txt`, `json`, `folder`, `stem`, `lines`, `metadata`, `column`, or `none`."""
    label: str | None = None
    """`folder`, `inner`, `cls`, `column`; None for no classes."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Columns or keys of captions and classes, by the flag that names each."""
    lines: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    """Caption and class by path below the source."""
    remedy: str = ""
    """Remedy for an image without a caption."""
    damaged: Sequence[BadRecord] = ()
    """Lines of captions that cannot be read."""
    numbered: Sequence[str] = ()
    """Names of classes by their numbers, where a column of numbers has names."""

    @property
    def companions(self) -> frozenset[str]:
        """Endings of the files of an image's stem that are read for it."""
        of_table = self.caption in ("lines", "metadata")
        json = self.caption == "json" or (self.label == "column" and not of_table)
        endings = {".txt": self.caption == "txt", ".json": json, ".cls": self.label == "cls"}
        return frozenset(ending for ending, is_read in endings.items() if is_read)

    def annotate(
        self, path: PurePosixPath, place: str, image: Any, beside: Mapping[str, bytes | str], problem: str = ""
    ) -> CaptionedImage:
        """Return the image at `path` below the source, `place` for people, with its caption and class.

        `beside`: contents (or why they are not read) of the files of the same stem, by their ending. `problem`: reason
        why it cannot be read. Raises UserError for an image outside all class folders.
        """
        caption, label = None, None
        contents = {ending: content for ending, content in beside.items() if isinstance(content, bytes)}
        if unread := next((content for content in beside.values() if isinstance(content, str)), ""):
            problem = problem or f"its caption or class: {unread}"
        values: dict[str, Any] = {}
        if ".json" in contents:
            try:
                values = parse_json(contents[".json"])
            except ValueError as error:
                problem = problem or f"its .json: {first_line(error)}"
            if not isinstance(values, dict):
                values, problem = {}, problem or "its .json holds no object"
        if self.caption in ("folder", "stem"):
            text = path.stem if self.caption == "stem" else path.parts[0] if len(path.parts) > 1 else None
            caption = None if text is None else visible_name(text).replace("_", " ").encode()
        elif self.caption in ("txt", "json"):
            caption = contents.get(".txt")
            if self.caption == "json":
                try:
                    caption = caption_bytes(values.get(self.keys[CAPTIONS]))
                except TypeError as error:
                    problem = problem or f"its .json holds a {error} in '{self.keys[CAPTIONS]}', no text"
        elif (line := self.lines.get(str(path))) is not None:
            caption, label = None if line[0] is None else line[0].encode(), line[1]
        elif self.damaged:
            problem = problem or "its caption may be in a damaged line"
        if self.label in ("folder", "inner"):
            label = self.label_of(path, place)
        elif self.label == "cls":
            label = class_name(contents.get(".cls", b"").decode(errors="replace").strip() or None)
        elif self.label == "column" and ".json" in self.companions:
            try:
                label = class_name(values.get(self.keys[LABELS]))
            except TypeError as error:
                problem = problem or f"its .json holds a {error} in '{self.keys[LABELS]}', no class"
        return CaptionedImage(place, None if problem else image, caption, label, problem, path.suffix.lower())

    def label_of(self, path: PurePosixPath, place: str) -> str | None:
        """Return the class of an image by its folder; None without. Raises UserError for one outside all folders."""
        if self.label not in ("folder", "inner"):
            return None
        if len(path.parts) < 2:
            raise UserError(
                f"--label-from={self.label}: {place} lies in no folder below --source; move it into the folder of its "
                "class, or name the folder of the class folders as --source."
            )
        return visible_name(path.parts[0 if self.label == "folder" else -2])


CAPTIONS, LABELS = "--caption-column", "--label-column"


def caption_text(value: Any) -> Any:
    """Return a caption, the several of a list a line each, None for an empty one; what is neither as it is."""
    if isinstance(value, list) and all(each is None or isinstance(each, str) for each in value):
        return "\n".join(" ".join(each.split()) for each in value if each) or None
    return value


def caption_bytes(value: Any) -> bytes | None:
    """Return a caption as UTF-8, several of a list a line each; None for null. Raises TypeError for another type."""
    if isinstance(value, bytes):
        return value
    if (text := caption_text(value)) is None or isinstance(text, str):
        return None if text is None else text.encode(errors="surrogatepass")
    raise TypeError(type(value).__name__)


def class_name(value: Any) -> str | None:
    """Return a class's name: text as it is, whole numbers in digits; None for null. Raises TypeError for another."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value).lower()
    raise TypeError(type(value).__name__)


def class_table(names: Iterable[str]) -> tuple[str, ...]:
    """Order the names of classes, whose numbers are their places: whole numbers by value, others as text."""
    found = set(names)
    if all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) for name in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


def read_lines(
    files: Sequence[SourceFile], caption: str | None, label: str | None, option: str, beside: bool
) -> tuple[dict[str, tuple[str | None, str | None]], list[BadRecord]]:
    """Read captions and classes by image path from tables of them, such as lines `{"file_name": "a/b.png", ...}`.

    `caption`, `label`: their keys; None for none. `beside`: paths begin in the folder of the table's file, else below
    the source. Returns lines of other forms too. Raises UserError, naming the line, where all lines are of another
    form, and for an image that has two.
    """
    keys = {"it the image's path": FILE_NAME, CAPTIONS: caption, LABELS: label}
    asked = {flag: key for flag, key in keys.items() if key is not None}
    lines: dict[str, tuple[str | None, str | None]] = {}
    damaged: list[BadRecord] = []
    for file in files:
        folder = PurePosixPath(file.name).parent if beside else PurePosixPath()
        for record in read_records(InputBlock(0, (file,), file.suffix.removeprefix(".")), asked):
            if record.problem and record.problem.is_rest:
                remedy = CONVERT if "UTF-8" in record.problem.reason else "name another file"
                raise UserError(f"{file.place if beside else option} is {record.problem.reason}; {remedy}.")
            found = dict(zip(asked, record.values or [None] * len(asked), strict=True))
            name = found["it the image's path"]
            problem = text_problem(record, "it the image's path", FILE_NAME, name)
            caption_found = caption_text(found.get(CAPTIONS))
            if caption is not None:
                problem = problem or text_problem(record, CAPTIONS, caption, caption_found)
            try:
                values = (caption_found, class_name(found.get(LABELS)))
            except TypeError as error:
                reason = f"'{label}' holds a {error}, no class"
                problem = problem or BadRecord.at(record.place, reason, "write text or a whole number there")
            if problem:
                problem.place = f"{visible_name(PurePosixPath(file.name).name)}, {record.where}"
                damaged.append(problem)
                continue
            path = str(folder / name.replace("\\", "/"))
            if path in lines:
                raise UserError(f"{file.place}, {record.where}: names {path} a second time; remove one of the lines.")
            lines[path] = values
    if damaged and not lines:
        raise damaged[0]
    return lines, damaged
