"""Captions and classes of images: from files beside them, names of folders, or rows of a table of
them.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.import_blocks import InputBlock
from ditlab.data.source_files import UNREADABLE, BadRecord, SourceFile, not_utf8
from ditlab.data.sources.records import SourceRecord, column_names, read_records, text_problem
from ditlab.data.sources.tables import named_classes, table_schema
from ditlab.errors import UserError, first_line, shortened
from ditlab.selection import Selection
from ditlab.spec.importing import ImagesOptions
from ditlab.spec.values import escaped

PATH = "it the image's path"
"""Name, in the place of a flag's, of what a line's key of the path gives."""
FILE_NAME = "file_name"
"""Key of a line that holds an image's path, as in Hugging Face's metadata.jsonl and
metadata.csv.
"""
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names of Hugging Face's tables of captions and classes, whose paths begin beside them."""
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""Pattern of class names that are whole numbers."""
MOST_ALIKE = 3
"""Groups of classes that a sentence lists."""
ALONE = "without an image"
"""Reason of captions and classes that belong to no image."""
SHARED = "images that share a caption or class file with another"
"""Name of the count of these."""
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
KINDS = {"images": "images", "tar": ".tar files", "parquet": ".parquet files"}
"""Kinds of blocks, and their names for people."""
CAPTION_NAMES = ("caption", "captions", "description", "prompt", "text", "txt")
LABEL_NAMES = ("class", "class_id", "class_name", "category", "label", "labels", "target")
"""Names of columns that hold captions, or classes, as people name them."""


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
            try:
                label = named_class(beside.get(".cls", b""))
            except BadRecord as error:
                problem = f"its class {error}"
        if problem:
            image = None
        return CaptionedImage(place, image, text, label, problem)


def named_class(content: bytes) -> str | None:
    """Return the class that the file beside an image names; None for an empty one. Raises BadRecord
    for bytes that are not UTF-8.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(0, error) from error
    return text.removeprefix("\ufeff").strip() or None


def folder_class(path: str, place: str) -> str:
    """Return the class of an image by its folder. Raises UserError for one outside all folders."""
    folder, slash, _ = path.removeprefix("./").partition("/")
    if not slash:
        raise UserError(
            f"--label-from=folder: {place} lies in no folder below --source; move it into the "
            "folder of its class, or name the folder of the class folders as --source."
        )
    return escaped(folder)


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
    as floats, as pandas does beside missing ones; None for null, NaN and text without a character.
    Raises TypeError for another.
    """
    if value is None:
        return None
    if isinstance(value, int):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    if text_problem(LABELS, "", value):
        raise TypeError("half of a surrogate pair")
    if not value.strip():
        return None
    return value


def named_numbers(table: SourceFile, column: str) -> tuple[str, ...]:
    """Return the names of a column's numbers, as its table has them; none where it has none or
    cannot be read. Raises UserError for a name that is there twice.
    """
    names: tuple[str, ...] = ()
    with suppress(*UNREADABLE):  # told as its rows are read
        names = named_classes(table_schema(table)).get(column, ())
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise UserError(
            f"{table.place}: '{column}' has two classes '{twice[0]}'; give one of them another "
            "name, or remove the names to import numbers."
        )
    return names


def label_of(value: str | None, names: Sequence[str]) -> str | None:
    """Return the class of a value of a column of numbers that have names: by its number, or its
    name; None for neither.
    """
    if value is None or value in names:
        return value
    if WHOLE_NUMBER.fullmatch(value) and 0 <= int(value) < len(names):
        return names[int(value)]
    return None


def class_table(names: Iterable[str | None]) -> tuple[str, ...]:
    """Order the names of classes, whose numbers are their places: numbers by value, others as text.

    A table of pandas holds the class 8 as 8.0 where another is missing; as text, 10.0 would come
    before it.
    """
    found = set(filter(None, names))
    if all(_NUMBER.fullmatch(name) for name in found):
        return tuple(sorted(found, key=lambda name: (Decimal(name), name)))
    return tuple(sorted(found))


def read_classes(path: Path) -> tuple[str, ...]:
    """Read the classes of --classes, a name a line in the order of their numbers. Raises UserError
    for a file that holds none, or one twice.
    """
    option = f"--classes={path}"
    try:
        text = path.read_bytes().decode().removeprefix("\ufeff")
    except OSError as error:
        raise UserError(f"{option} cannot be read ({first_line(error)}); correct it.") from error
    except UnicodeDecodeError as error:
        bad_text = not_utf8(0, error)
        raise UserError(f"{option} {bad_text}; {bad_text.remedy}.") from error
    names = [line.strip() for line in text.splitlines()]
    while names and not names[-1]:
        names.pop()
    if not names or not all(names):
        raise UserError(f"{option} holds a line without a name; write a class on each line.")
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise UserError(f"{option} names '{twice[0]}' twice; remove one of the lines.")
    return tuple(names)


def class_notes(names: Sequence[str], are_ordered: bool) -> list[str]:
    """Return sentences on classes that may be meant otherwise: names that differ by their writing
    alone, and numbers that are not the class's own.

    `are_ordered`: the user or the file has said the order.
    """
    notes = []
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_plain_form(name), []).append(name)
    groups = [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]
    if groups:
        notes.append(
            "Classes that differ by case, space or the writing of a number alone are classes of "
            f"their own: {shortened(groups, MOST_ALIKE)}; name them alike if they are one."
        )
    moved = [(number, name) for number, name in enumerate(names) if name != str(number)]
    if moved and not are_ordered and all(map(WHOLE_NUMBER.fullmatch, names)):
        number, name = moved[0]
        notes.append(
            f"Class '{name}' is number {number}, as classes are numbered from 0 in their order; "
            "where a model has numbers for them, give the names in its order by --classes FILE."
        )
    return notes


def _plain_form(name: str) -> str:
    """Return a form that names share if they differ by case, space or the writing of a number
    alone.
    """
    plain = " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split())
    with suppress(ValueError, OverflowError):
        plain = f"{float(plain):.17g}"
    return plain


def read_lines(files: Sequence[SourceFile], keys: Mapping[str, str]) -> dict[str, Line]:
    """Read captions and classes by image path from tables of them, such as lines `{"file_name":
    "a/b.png", ...}`.

    `keys`: those of captions and classes, by flag. Paths begin in the folder of the table's file.
    Raises UserError, naming the line, for one of another form, and for an image that has two.
    """
    asked = {PATH: FILE_NAME, **keys}
    lines: dict[str, Line] = {}
    for file in files:
        names = _names_of_numbers(file, keys)
        for record in read_records(InputBlock(0, (file,), file.kind), asked):
            try:
                name, (caption, label) = _read_line(record, asked)
            except BadRecord as problem:
                raise replace(record, problem=problem).error() from None
            path = str(PurePosixPath(file.name).parent / name.replace("\\", "/"))
            if path in lines:
                raise UserError(
                    f"{file.place}, {record.where}: names {path} a second time; remove one of "
                    "the lines."
                )
            if names:
                label = label_of(label, names)
            lines[path] = (caption, label)
    return lines


def _names_of_numbers(file: SourceFile, keys: Mapping[str, str]) -> Sequence[str]:
    """Return the names of the numbers of a metadata file's classes; none where it has none."""
    if LABELS not in keys or file.kind != "parquet":
        return ()
    return named_numbers(file, keys[LABELS])


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


def find_annotations(
    options: ImagesOptions, kind: str, metadata: Sequence[SourceFile]
) -> Annotations:
    """Read the rules for a kind of source. Raises UserError for an origin that this kind does not
    have.
    """
    caption = _caption_origin(options, kind, bool(metadata))
    label = _label_origin(options, kind, bool(metadata))
    keys = {}
    if caption in ("metadata", "column"):
        keys[CAPTIONS] = options.caption_column
    if options.label_column:
        keys[LABELS] = options.label_column
    if not metadata or not keys:
        return Annotations(caption, label, keys)
    numbered = _names_of_numbers(metadata[0], keys)
    return Annotations(caption, label, keys, read_lines(metadata, keys), numbered)


def _caption_origin(options: ImagesOptions, kind: str, has_metadata: bool) -> str:
    """Return where captions are, as asked or as a kind of source has them by itself. Raises
    UserError.
    """
    is_table = kind == "parquet"
    if is_table:
        default = "column"
    elif has_metadata:
        default = "metadata"
    else:
        default = "none" if options.label_from or options.label_column else "txt"
    caption = options.caption_from or default
    has = {"column": is_table, "txt": not is_table, "metadata": has_metadata, "none": True}
    if not has[caption]:
        raise UserError(
            f"--caption-from={caption}: --source={options.source} holds {KINDS[kind]}, which "
            "have their captions in a column (Parquet), in .txt files of the same stem, or in "
            "a metadata.jsonl or .csv beside images."
        )
    return caption


def _label_origin(options: ImagesOptions, kind: str, has_metadata: bool) -> str | None:
    """Return where classes are; None for no classes. Raises UserError for what a kind of source
    does not have.
    """
    is_table = kind == "parquet"
    if options.label_column:
        if not (is_table or has_metadata):
            raise _no_classes(options, kind, "--label-from")
        return "column"
    if options.label_from and is_table:
        raise _no_classes(options, kind, "--label-column")
    return options.label_from


def _no_classes(options: ImagesOptions, kind: str, right: str) -> UserError:
    return UserError(f"classes: --source={options.source} holds {KINDS[kind]}; give {right}.")


def listed_classes(
    options: ImagesOptions, annotations: Annotations, found: Sequence[str]
) -> Sequence[str]:
    """Return the classes of --classes; without it those that were found. Raises UserError for found
    ones that are not listed there.
    """
    if options.classes is None:
        return found
    option = f"--classes={options.classes}"
    if not annotations.label:
        raise UserError(
            f"{option} lists classes, and none are read; give --label-from or --label-column."
        )
    classes = read_classes(Path(options.classes))
    missing = [name for name in found if name not in set(classes)]
    if missing:
        raise UserError(
            f"{option} lacks {shortened(missing, 3)}, of the classes of "
            f"--source={options.source}; add a line for each."
        )
    return classes


def caption_note(options: ImagesOptions, annotations: Annotations, table: SourceFile) -> str:
    """Return a sentence on other columns that could be captions, where the user named none; empty
    for none.
    """
    if CAPTIONS not in annotations.keys or "caption_column" in options.model_fields_set:
        return ""
    taken = annotations.keys.values()
    others = [name for name in _names(table) if name.lower() in CAPTION_NAMES]
    others = [name for name in others if name not in taken]
    if not others:
        return ""
    choice = Selection(f"column {options.caption_column}", tuple(others), option=CAPTIONS)
    return f"Captions are of {choice}."


def class_note(annotations: Annotations, table: SourceFile) -> str:
    """Return a sentence on columns that hold classes, where none are imported; empty for none."""
    if annotations.label is not None:
        return ""
    held = [name for name in _names(table) if name.lower() in LABEL_NAMES]
    with suppress(*UNREADABLE):  # told as its rows are read
        held += [name for name in named_classes(table_schema(table)) if name not in held]
    if not held:
        return ""
    quoted = ", ".join(f"'{name}'" for name in held)
    subject = f"Column {quoted} holds" if len(held) == 1 else f"Columns {quoted} hold"
    return f"{subject} classes, which were not imported; give {LABELS} {held[0]} for them."


def _names(table: SourceFile) -> Sequence[str]:
    with suppress(*UNREADABLE, BadRecord):  # told as its rows are read
        return column_names(table)
    return ()
