"""Pages of text, tables and pictures, written as one HTML file and as Markdown."""

from __future__ import annotations

import base64
import mimetypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ditlab.reports.formatting import Cell, escape_markdown, format_cell, is_numeric, markdown_fence
from ditlab.storage.files import write_whole

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns."""

    columns: Sequence[str]
    """Headings; all empty for a table without them."""
    rows: Sequence[Sequence[Cell]]
    """One cell a column in each row. None is an empty cell; columns of numbers are aligned to the right."""
    caption: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), "a row is not as long as the columns"

    @property
    def numeric(self) -> list[bool]:
        """For each column, True if it holds only numbers."""
        return [is_numeric([row[index] for row in self.rows]) for index in range(len(self.columns))]


@dataclass(frozen=True)
class ImageFile:
    """Picture in a PNG, GIF, JPEG or SVG file."""

    path: Path
    caption: str = ""

    @property
    def alternative(self) -> str:
        """Alternative text: the file's name in words."""
        return re.sub(r"[-_]+", " ", self.path.stem)

    @property
    def data_uri(self) -> str:
        """Content of the file as a data URI; raises OSError where it cannot be read."""
        kind = mimetypes.guess_type(self.path.name)[0] or "image/png"
        return f"data:{kind};base64,{base64.b64encode(self.path.read_bytes()).decode()}"


@dataclass(frozen=True)
class Paragraphs:
    """Text in paragraphs separated by empty lines."""

    text: str

    @property
    def paragraphs(self) -> list[str]:
        """The paragraphs, each in one line."""
        return [" ".join(part.split()) for part in re.split(r"\n\s*\n", self.text) if part.strip()]


@dataclass(frozen=True)
class Code:
    """Text shown verbatim."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Section:
    """Parts of a page under one heading."""

    title: str
    parts: Sequence[Table | ImageFile | Paragraphs | Code]


@dataclass(frozen=True)
class Page:
    """Title, summary and sections."""

    title: str
    summary: str
    sections: Sequence[Section]


def write_html(page: Page, path: Path) -> Path:
    """Write `page` as one self-contained HTML file: pictures as data URIs, style included, no script.

    Escapes every text, makes folders as needed and replaces the file atomically. Returns `path`; raises
    OSError where a picture cannot be read or the disk refuses.
    """
    return _write(_environment(html=True).get_template("page.html.j2").render(page=page), path)


def write_markdown(page: Page, path: Path) -> Path:
    """Write `page` as GitHub Markdown, with pictures by their paths relative to the file.

    Escapes every text, makes folders as needed and replaces the file atomically. Returns `path`; raises
    OSError where the disk refuses.
    """

    def address(picture: Path) -> str:
        return quote(Path(os.path.relpath(picture, path.parent)).as_posix())

    return _write(_environment(html=False).get_template("page.md.j2").render(page=page, address=address), path)


def _write(text: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, (_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text).strip() + "\n").encode())


@cache
def _environment(html: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": format_cell, "md": escape_markdown, "fence": markdown_fence}
    environment.tests["instance"] = _is_instance
    return environment


def _is_instance(part: Any, kind: str) -> bool:
    return type(part).__name__ == kind
