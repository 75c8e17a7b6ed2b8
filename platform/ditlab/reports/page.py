"""Pages of text, tables, charts and pictures, written as one HTML file and as Markdown, or served
live.
"""

from __future__ import annotations

import base64
import hashlib
import html
import mimetypes
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from ditlab.reports.charts import Chart
from ditlab.reports.formatting import Cell, escape_markdown, format_cell, is_numeric, markdown_fence
from ditlab.storage.files import write_whole
from ditlab.storage.plain_files import MIB, read_plain

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_TEMPLATES = Path(__file__).parent / "templates"
_LARGEST_PICTURE = 64 * MIB
_MOST_CHARACTERS = 1000
_DESC = re.compile(r"<desc>([^<]*)</desc>")


class Link(str):
    """Text of a table's cell that leads to another page."""

    address: str

    def __new__(cls, text: str, address: str) -> Link:
        """`address`: from the page's own folder on."""
        made = super().__new__(cls, text)
        made.address = address
        return made


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns."""

    columns: Sequence[str]
    """Headings; all empty for a table without them."""
    rows: Sequence[Sequence[Cell]]
    """One cell a column in each row. None is an empty cell; columns of numbers are aligned to the
    right.
    """
    caption: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), (
            "a row is not as long as the columns"
        )

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
        """Alternative text: the one that the file carries, else its name in words."""
        return read_description(self.path) or re.sub(r"[-_]+", " ", self.path.stem)

    @property
    def data_uri(self) -> str:
        """Content of the file as a data URI; raises OSError where it cannot be read."""
        return data_uri(self.path.read_bytes(), self.path.name)


def read_description(path: Path) -> str:
    """Read a picture's alternative text, an SVG's `<desc>` or a PNG's `Description`; "" where none
    can be read.
    """
    text = ""
    suffix = path.suffix.lower()
    try:
        content = read_plain(path, _LARGEST_PICTURE)
        if suffix == ".svg":
            found = _DESC.search(content[:MIB].decode(errors="replace"))
            text = html.unescape(found[1]) if found else ""
        elif suffix == ".png":
            with Image.open(BytesIO(content)) as image:  # reads what stands before the pixels
                text = str(image.info.get("Description", ""))
    except (OSError, ValueError, SyntaxError):  # Pillow raises all three for damaged files
        return ""
    return " ".join(text.split())[:_MOST_CHARACTERS]


def data_uri(content: bytes, name: str) -> str:
    """Content of a picture as a data URI, with the type that its file's name tells."""
    kind = mimetypes.guess_type(name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


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
class ChartGrid:
    """Charts side by side, as many as the window is wide."""

    charts: Sequence[Chart]
    caption: str


@dataclass(frozen=True)
class Fact:
    """A number or a word with its name: `samples/s`, `1,493`, `median of 900 steps`."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts as tiles."""

    facts: Sequence[Fact]


@dataclass(frozen=True)
class Slide:
    """Samples of one step: a picture or a text."""

    label: str
    """`step 600`."""
    source: str = ""
    """Address of the picture, a data URI in a file; empty for a text."""
    alternative: str = ""
    text: str = ""
    captions: Sequence[str] = ()
    """Captions of the images in the picture."""


@dataclass(frozen=True)
class Slides:
    """Samples over the steps, one at a time, with a slider."""

    key: str
    """Name of its elements in the page: letters, digits and `-`."""
    slides: Sequence[Slide]
    """In the order of the steps; the last one is shown first."""
    caption: str


@dataclass(frozen=True)
class NamedPicture:
    """A picture by its name."""

    name: str
    source: str
    """Address: a data URI in a file."""
    about: str = ""
    """Alternative text; empty where the file carries none."""
    sentence: str = ""
    """Says to a reader what the picture shows."""

    @property
    def alternative(self) -> str:
        """`about`, else the name."""
        return self.about or f"Figure: {self.name}"


@dataclass(frozen=True)
class Pictures:
    """Small pictures under their names, each with a sentence; a click shows one as large as it
    is.
    """

    pictures: Sequence[NamedPicture]


@dataclass(frozen=True)
class TimeMark:
    """An attempt on a timeline, in percent of its length."""

    left: float
    kind: str
    """The attempt's status, which decides the colour."""
    text: str
    width: float


@dataclass(frozen=True)
class TimeEvent:
    """A line of a list of events."""

    time: str
    """For people."""
    iso: str
    """For machines."""
    kind: str
    text: str


@dataclass(frozen=True)
class Timeline:
    """Attempts and events of a run as a strip, and as a list."""

    bars: Sequence[TimeMark]
    ends: tuple[str, str]
    """Times of both ends of the strip."""
    events: Sequence[TimeEvent]
    alternative: str
    caption: str


@dataclass(frozen=True)
class Notice:
    """A sentence that stands out: something is missing or damaged."""

    text: str


@dataclass(frozen=True)
class Row:
    """Parts side by side where the window is wide enough."""

    parts: Sequence[Part]


Part = (
    Table
    | ImageFile
    | Paragraphs
    | Code
    | ChartGrid
    | Facts
    | Slides
    | Pictures
    | Timeline
    | Notice
    | Row
)


@dataclass(frozen=True)
class Section:
    """Parts of a page under one heading."""

    title: str
    parts: Sequence[Part]
    key: str = ""
    """Name of the section in the page's addresses; empty: by its number."""
    folded: Sequence[tuple[str, Sequence[Part]]] = ()
    """Titles and parts that are shown on request, after the others."""


@dataclass(frozen=True)
class Page:
    """Title, summary and sections."""

    title: str
    summary: str
    sections: Sequence[Section]
    status: str = ""
    """A word beside the title: `finished`, `running` and so on."""
    progress: float | None = None
    """Fraction of the work that is done, shown as a bar; None: no bar."""


def render_html(
    page: Page, policy: str = "", live: int = 0, digests: Mapping[str, str] | None = None
) -> str:
    """Render a page as one self-contained document: pictures as data URIs, style and script
    included, nothing fetched.

    A page that a server keeps up to date has a `policy` of its own, asks for changes every `live`
    milliseconds, and says by `digests` which versions of its sections it shows. Escapes every text;
    the page's policy lets no other script run than its own. Raises OSError where a picture cannot
    be read.
    """
    template = environment(html=True).get_template("page.html.j2")
    script = Markup(_script()[0])
    text = template.render(
        page=page, policy=policy or content_policy(), live=live, digests=digests, script=script
    )
    return text.lstrip()


def content_policy(images: str = "data:") -> str:
    """Content security policy of a page: its own script alone, and pictures from these sources."""
    return (
        f"default-src 'none'; img-src {images}; style-src 'unsafe-inline'; script-src "
        f"{_script()[1]}"
    )


def write_html(page: Page, path: Path) -> Path:
    """Write `render_html(page)` atomically, with new folders; return `path`. Raises OSError, also
    for a picture.
    """
    return write_text(render_html(page), path)


def write_markdown(page: Page, path: Path) -> Path:
    """Write `page` as GitHub Markdown with relative pictures, atomically; returns `path`. Raises
    OSError.
    """

    def address(picture: Path) -> str:
        return quote(Path(os.path.relpath(picture, path.parent)).as_posix())

    return write_text(
        environment(html=False).get_template("page.md.j2").render(page=page, address=address), path
    )


def printable(text: str) -> str:
    """Replace control characters, of which HTML and Markdown have none."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def write_text(text: str, path: Path) -> Path:
    """Write a rendered page without control characters; makes folders as needed, and replaces the
    file atomically.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, (printable(text).strip() + "\n").encode())


@cache
def _script() -> tuple[str, str]:
    """The page's script, and its hash as a content security policy names it."""
    text = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    return text, f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def environment(html: bool) -> Environment:
    """Templates of pages, as HTML or as Markdown."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.filters |= {"cell": format_cell, "md": escape_markdown, "fence": markdown_fence}
    made.tests["instance"] = lambda part, kind: type(part).__name__ == kind
    return made
