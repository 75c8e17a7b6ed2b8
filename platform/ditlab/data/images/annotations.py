"""Captions and classes of images: from files beside them, names of files and folders, or lines of JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.import_blocks import InputBlock
from ditlab.data.source_files import BadRecord, local_file, visible_name
from ditlab.data.sources.records import read_records, text_problem
from ditlab.errors import UserError

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
        caption = beside if self.caption == "txt" else None
        if self.caption in ("folder", "stem"):
            text = path.stem if self.caption == "stem" else path.parts[0] if len(path.parts) > 1 else None
            caption = None if text is None else visible_name(text).replace("_", " ").encode()
        elif str(path) in self.lines:
            caption = self.lines[str(path)].encode()
        elif self.caption == "lines" and self.damaged:
            problem = problem or "its caption may be in a damaged line"
        return CaptionedImage(place, None if problem else image, caption, self.label_of(path, place), problem)

    def label_of(self, path: PurePosixPath, place: str) -> str | None:
        """Return the class of an image below the source; None without. Raises UserError for one outside all folders."""
        if self.label is None:
            return None
        if len(path.parts) < 2:
            raise UserError(
                f"--label-from=folder: {place} lies in no folder below --source; move it into the folder of its class, "
                "or name the folder of the class folders as --source."
            )
        return visible_name(path.parts[0])


def read_captions(file: Path, key: str) -> tuple[dict[str, str], list[BadRecord]]:
    """Read captions by image path from lines `{"file_name": "a/b.png", "caption": "a dot"}`, and lines of other forms.

    Raises UserError, naming the line, where all lines are of another form, and for an image that has two.
    """
    keys = {"it the image's path below --source": FILE_NAME, "--caption-column": key}
    captions: dict[str, str] = {}
    damaged: list[BadRecord] = []
    for record in read_records(InputBlock(0, (local_file(file),), "jsonl"), keys):
        if record.is_rest and record.problem:
            raise UserError(f"--caption-from={file} is {record.problem.reason}; name another file.")
        values = zip(keys.items(), record.values or (None, None), strict=True)
        if problem := next(filter(None, (text_problem(record, *key, value) for key, value in values)), None):
            problem.place = f"{visible_name(file.name)}, {record.where}"
            damaged.append(problem)
            continue
        name = str(PurePosixPath(record.values[0]))
        if name in captions:
            raise UserError(f"{file}, {record.where}: names {name} a second time; remove one of the lines.")
        captions[name] = record.values[1]
    if damaged and not captions:
        raise damaged[0]
    return captions, damaged
