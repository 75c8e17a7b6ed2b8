"""Captions and classes of images: from files beside them, names of files and folders, or lines of JSON."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ditlab.data.block_imports.source_files import BadRecord, file_lines, not_utf8, visible_name
from ditlab.errors import UserError, first_line, nearest

FILE_NAME = "file_name"
"""Key of a line that holds an image's path below the source, as in Hugging Face's metadata.jsonl."""
REMEDIES = {
    "txt": "write one into a .txt file of the same stem, give --caption-from (or --label-from folder, for classes)",
    "folder": "put it into a folder below --source that its caption names",
    "stem": "name the file by its caption",
    "lines": "add a line for it to {lines}",
    "column": "write one into column '{column}' (--caption-column)",
}
"""Remedies for an image without a caption."""


@dataclass(frozen=True)
class Annotations:
    """Rules that give an image its caption and its class."""

    caption: str
    """`txt`, `folder`, `stem`, `lines`, `column`, or `none`."""
    label: str | None = None
    """`folder`, or None for no classes."""
    lines: Mapping[str, str] = field(default_factory=dict)
    """Captions by path below the source."""
    remedy: str = ""
    """Remedy for an image without a caption."""
    damaged: Sequence[BadRecord] = ()
    """Lines of captions that cannot be read."""

    def caption_of(self, path: PurePosixPath, beside: bytes | Path | None) -> bytes | Path | None:
        """Return the caption of the image at `path` below the source, or a file that holds it.

        `beside` is that of the .txt of the same stem.
        """
        match self.caption:
            case "txt":
                return beside
            case "folder":
                text = top_folder(path)
            case "stem":
                text = path.stem
            case _:
                text = self.lines.get(str(path))
        if text is None or self.caption == "lines":
            return None if text is None else text.encode()
        return visible_name(text).replace("_", " ").encode()

    def label_of(self, path: PurePosixPath, place: str) -> str | None:
        """Return the class of the image at `path` below the source; None without classes.

        Raises UserError, naming the place, for an image outside all folders.
        """
        if self.label is None:
            return None
        folder = top_folder(path)
        if folder is None:
            raise UserError(
                f"--label-from=folder: {place} lies in no folder below --source; move it into the folder of its class, "
                "or name the folder of the class folders as --source."
            )
        return visible_name(folder)


def top_folder(path: PurePosixPath) -> str | None:
    """Return the first folder of a path below the source, its class; None for a file outside all folders."""
    parts = PurePosixPath(*(part for part in path.parts if part != ".")).parts
    return parts[0] if len(parts) > 1 else None


@dataclass(frozen=True)
class CaptionLines:
    """Lines of captions."""

    captions: Mapping[str, str]
    """Captions by path below the source."""
    damaged: Sequence[BadRecord]
    """Lines that cannot be read."""


def read_captions(file: Path, key: str) -> CaptionLines:
    """Read captions by image path from lines `{"file_name": "a/b.png", "caption": "a red dot"}`.

    A line of another form costs itself alone. Raises UserError, naming the line, where all lines are of another form,
    and for an image that has two.
    """
    captions: dict[str, str] = {}
    damaged: list[BadRecord] = []
    try:
        for number, line in enumerate(file_lines(file), start=1):
            place = f"{file}, line {number}"
            if not line.strip():
                continue
            try:
                name, caption = _of_line(line, key, place)
            except BadRecord as error:
                damaged.append(BadRecord(str(error), f"{visible_name(file.name)}, line {number}", error.reason))
                continue
            if name in captions:
                raise UserError(f"{place}: names {name} a second time; remove one of the lines.")
            captions[name] = caption
    except OSError as error:
        raise UserError(f"--caption-from={file} cannot be read ({first_line(error)}); name another file.") from error
    if damaged and not captions:
        raise damaged[0]
    return CaptionLines(captions, damaged)


def _of_line(line: bytes, key: str, place: str) -> tuple[str, str]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadRecord.at(place, not_utf8(0, error), "write the line again in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise BadRecord.at(place, f"is no JSON ({first_line(error)})", "a line takes one object") from error
    if not isinstance(record, dict):
        raise BadRecord.at(place, f"holds a {type(record).__name__}, not a JSON object", "a line takes one object")
    for each, remedy in ((FILE_NAME, "write the image's path below --source there"), (key, "give --caption-column")):
        if each not in record:
            raise BadRecord.at(place, f"has no key '{each}' ({nearest(each, list(record))})", remedy)
        if not isinstance(record[each], str):
            raise BadRecord.at(place, f"'{each}' holds a {type(record[each]).__name__}, no text", remedy)
    try:
        record[key].encode()
    except UnicodeEncodeError as error:
        raise BadRecord.at(place, f"'{key}' holds half of a surrogate pair, which is no text", "correct it") from error
    return str(PurePosixPath(record[FILE_NAME])), record[key]


def check_known(lines: Path, captions: Mapping[str, str], images: Collection[str], source: str) -> None:
    """Raise UserError for captions of images that the source does not hold."""
    unknown = [name for name in captions if name not in images]
    if unknown:
        first, more = visible_name(unknown[0]), f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        raise UserError(
            f"--caption-from={lines} names {first}{more}, which --source={source} does not hold; correct the paths, "
            "which begin below --source, or remove the lines."
        )
