"""Captions and classes of images: from files beside them, names of files and folders, or lines of JSON."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ditlab.data.block_imports.source_files import BadRecord, local_file, visible_name
from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.sources.lines import lines_between, parse_line
from ditlab.errors import UserError, first_line

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

    def annotate(
        self,
        path: PurePosixPath,
        place: str,
        image: bytes | Path | None,
        beside: bytes | Path | None,
        problem: str = "",
    ) -> CaptionedImage:
        """Return the image at `path` below the source, `place` for people, with its caption and class.

        `beside`: content or path of the .txt of the same stem. `problem`: reason why it cannot be read. Raises
        UserError for an image outside all class folders.
        """
        caption, text = beside, None
        if self.caption == "folder":
            text = top_folder(path)
        elif self.caption == "stem":
            text = path.stem
        if self.caption != "txt":
            caption = None if text is None else visible_name(text).replace("_", " ").encode()
        if self.caption == "lines":
            line = self.lines.get(str(path))
            caption = None if line is None else line.encode()
            if line is None and self.damaged:
                problem = problem or "its caption may be in a damaged line"
        return CaptionedImage(place, None if problem else image, caption, self.label_of(path, place), problem)

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
        for number, (begin, line) in enumerate(lines_between(local_file(file)), start=1):
            place = f"{visible_name(file.name)}, line {number}"
            try:
                found = _parse(line, begin, key, f"{file}, line {number}")
            except BadRecord as error:
                damaged.append(BadRecord(str(error), place, error.reason))
                continue
            if found is None:
                continue
            name, caption = found
            if name in captions:
                raise UserError(f"{file}, line {number}: names {name} a second time; remove one of the lines.")
            captions[name] = caption
    except OSError as error:
        raise UserError(f"--caption-from={file} cannot be read ({first_line(error)}); name another file.") from error
    if damaged and not captions:
        raise damaged[0]
    return CaptionLines(captions, damaged)


def _parse(line: bytes, begin: int, key: str, place: str) -> tuple[str, str] | None:
    """Return path and caption of a line; None for an empty one."""
    keys = {"it the image's path below --source": FILE_NAME, "--caption-column": key}
    values = parse_line(line, begin, place, place, keys)
    if values is None:
        return None
    for each, value in zip(keys.values(), values, strict=True):
        if not isinstance(value, str):
            raise BadRecord.at(place, f"'{each}' holds a {type(value).__name__}, no text", "write text there")
    name, caption = values
    try:
        caption.encode()
    except UnicodeEncodeError as error:
        raise BadRecord.at(place, f"'{key}' holds half of a surrogate pair, which is no text", "correct it") from error
    return str(PurePosixPath(name)), caption


def check_known(lines: Path, captions: Mapping[str, str], images: Collection[str], source: str) -> None:
    """Raise UserError for captions of images that the source does not hold."""
    unknown = [name for name in captions if name not in images]
    if unknown:
        first, more = visible_name(unknown[0]), f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        raise UserError(
            f"--caption-from={lines} names {first}{more}, which --source={source} does not hold; correct the paths, "
            "which begin below --source, or remove the lines."
        )
