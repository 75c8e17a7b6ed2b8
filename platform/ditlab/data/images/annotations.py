"""Captions and classes of images: from files beside them, names of files and folders, or rows of a table of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.import_blocks import InputBlock
from ditlab.data.source_files import BadRecord, SourceFile, visible_name
from ditlab.data.sources.records import SourceRecord, read_records, text_problem
from ditlab.data.stores.receipt import DroppedRecord
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import parse_json

PATH = "it the image's path"
"""Name, in the place of a flag's, of what a line's key of the path gives."""
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


Line = tuple[str | None, str | None]
"""Caption and class of an image."""


@dataclass(frozen=True)
class Annotations:
    """Rules that give an image its caption and its class."""

    caption: str
    """`txt`, `json`, `folder`, `stem`, `lines`, `metadata`, `column`, or `none`."""
    label: str | None = None
    """`folder`, `inner`, `cls`, `column`; None for no classes."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Columns or keys of captions and classes, by the flag that names each."""
    lines: Mapping[str, Line] = field(default_factory=dict)
    """Caption and class by path below the source."""
    tables: Sequence[str] = ()
    """Paths or URIs of the files that the lines are of."""
    remedy: str = ""
    """Remedy for an image without a caption."""
    damaged: Sequence[DroppedRecord] = ()
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
        contents = {ending: content for ending, content in beside.items() if isinstance(content, bytes)}
        unread = next((content for content in beside.values() if isinstance(content, str)), "")
        beside_problem = f"its caption or class: {unread}" if unread else ""
        values, json_problem = _json_object(contents.get(".json"))
        caption, caption_problem = self._caption(path, contents, values)
        label, label_problem = self._label(path, place, contents, values)
        problem = problem or beside_problem or json_problem or caption_problem or label_problem
        return CaptionedImage(place, None if problem else image, caption, label, problem)

    def _caption(
        self, path: PurePosixPath, contents: Mapping[str, bytes], values: Mapping[str, Any]
    ) -> tuple[bytes | None, str]:
        """Return an image's caption, and the reason why it cannot be read; `values`: those of its .json."""
        if self.caption == "stem":
            return _name_as_caption(path.stem), ""
        if self.caption == "folder":
            return (_name_as_caption(path.parts[0]) if len(path.parts) > 1 else None), ""
        if self.caption == "txt":
            return contents.get(".txt"), ""
        if self.caption == "json":
            try:
                return caption_bytes(values.get(self.keys[CAPTIONS])), ""
            except TypeError as error:
                return None, f"its .json holds a {error} in '{self.keys[CAPTIONS]}', no text"
        line = self.lines.get(str(path))
        if line is not None:
            return caption_bytes(line[0]), ""
        return None, "its caption may be in a damaged line" if self.damaged else ""

    def _label(
        self, path: PurePosixPath, place: str, contents: Mapping[str, bytes], values: Mapping[str, Any]
    ) -> tuple[str | None, str]:
        """Return an image's class, and the reason why it cannot be read. Raises UserError as `label_of` does."""
        if self.label == "cls":
            return contents.get(".cls", b"").decode(errors="replace").strip() or None, ""
        if self.label != "column":
            return self.label_of(path, place), ""
        if ".json" not in self.companions:
            line = self.lines.get(str(path))
            return (line[1] if line else None), ""
        try:
            return class_name(values.get(self.keys[LABELS])), ""
        except TypeError as error:
            return None, f"its .json holds a {error} in '{self.keys[LABELS]}', no class"

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


def _json_object(content: bytes | None) -> tuple[dict[str, Any], str]:
    """Return the values of an image's .json, none without one, and the reason why it cannot be read."""
    if content is None:
        return {}, ""
    try:
        values = parse_json(content)
    except ValueError as error:
        return {}, f"its .json: {first_line(error)}"
    if not isinstance(values, dict):
        return {}, "its .json holds no object"
    return values, ""


def _name_as_caption(name: str) -> bytes:
    return visible_name(name).replace("_", " ").encode()


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
    files: Sequence[SourceFile], keys: Mapping[str, str], option: str | None = None
) -> tuple[dict[str, Line], list[DroppedRecord]]:
    """Read captions and classes by image path from tables of them, such as lines `{"file_name": "a/b.png", ...}`.

    `keys`: those of captions and classes, by flag. `option`: the one that names the table, whose paths begin below the
    source; None: paths begin in the folder of the table's file. Returns lines of other forms too. Raises UserError,
    naming the line, where all lines are of another form, and for an image that has two.
    """
    asked = {PATH: FILE_NAME, **keys}
    lines: dict[str, Line] = {}
    damaged: list[DroppedRecord] = []
    first: UserError | None = None
    for file in files:
        folder = PurePosixPath() if option else PurePosixPath(file.name).parent
        for record in read_records(InputBlock(0, (file,), file.suffix.removeprefix(".")), asked):
            if record.problem and record.is_rest:
                raise UserError(f"{option or file.place} {record.problem}; {record.problem.remedy}.")
            try:
                name, values = _read_line(record, asked)
            except BadRecord as problem:
                place = f"{visible_name(PurePosixPath(file.name).name)}, {record.where}"
                damaged.append(DroppedRecord(place=place, reason="damaged line", detail=str(problem)))
                first = first or record.error(problem)
                continue
            path = str(folder / name.replace("\\", "/"))
            if path in lines:
                raise UserError(f"{file.place}, {record.where}: names {path} a second time; remove one of the lines.")
            lines[path] = values
    if first and not lines:
        raise first
    return lines, damaged


def _read_line(record: SourceRecord, keys: Mapping[str, str]) -> tuple[str, Line]:
    """Return a line's path, with its caption and class. Raises BadRecord for one of another form."""
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
