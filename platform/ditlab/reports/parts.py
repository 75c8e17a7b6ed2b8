"""Parts of a page: tables, pictures, texts, charts, samples over steps, facts and timelines."""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ditlab.reports.charts import Chart
from ditlab.reports.formatting import Cell, is_numeric
from ditlab.reports.rendering.description import read_description


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
        """Alternative text: the one that the file carries, else its name in words."""
        return read_description(self.path) or re.sub(r"[-_]+", " ", self.path.stem)

    @property
    def data_uri(self) -> str:
        """Content of the file as a data URI; raises OSError where it cannot be read."""
        return data_uri(self.path.read_bytes(), self.path.name)


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
    caption: str = ""


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
    caption: str = ""


@dataclass(frozen=True)
class NamedPicture:
    """A picture by its name."""

    name: str
    source: str
    """Address: a data URI in a file."""
    dark: str = ""
    """Address of the same picture for dark pages; empty where there is none."""
    about: str = ""
    """Alternative text; empty where the file carries none."""

    @property
    def alternative(self) -> str:
        """`about`, else the name."""
        return self.about or f"Figure: {self.name}"


@dataclass(frozen=True)
class Pictures:
    """Pictures under their names."""

    pictures: Sequence[NamedPicture]


@dataclass(frozen=True)
class TimeBar:
    """An attempt on a timeline, in percent of its length."""

    left: float
    width: float
    kind: str
    """`finished`, `failed`, `interrupted`, `running` and the like, which decide the colour."""
    text: str


@dataclass(frozen=True)
class TimeMark:
    """A moment on a timeline, in percent of its length."""

    left: float
    kind: str
    """Kind of the event, which decides colour and height."""
    text: str


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

    bars: Sequence[TimeBar]
    marks: Sequence[TimeMark]
    ends: tuple[str, str]
    """Times of both ends of the strip."""
    events: Sequence[TimeEvent]
    alternative: str
    caption: str = ""


@dataclass(frozen=True)
class Notice:
    """A sentence that stands out: something is missing or damaged."""

    text: str


Part = Table | ImageFile | Paragraphs | Code | ChartGrid | Facts | Slides | Pictures | Timeline | Notice


@dataclass(frozen=True)
class Section:
    """Parts of a page under one heading."""

    title: str
    parts: Sequence[Part]
    key: str = ""
    """Name of the section in the page's addresses; empty: by its number."""
    folded: Sequence[tuple[str, Sequence[Part]]] = field(default_factory=tuple)
    """Titles and parts that are shown on request, after the others."""
