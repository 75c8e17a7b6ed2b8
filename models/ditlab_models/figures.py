"""Figures as data, for a renderer elsewhere. Needs numpy arrays only.

Every text is shown as it is written: no panel reads markup in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np

_ALT_CHARACTERS = 1000
WANTED_COLUMNS = 8
Weight = Literal["plain", "strong", "faint", "dashed"]
"""Weight of a curve among others."""


@dataclass(frozen=True)
class Heatmap:
    """A matrix in false colours."""

    values: np.ndarray
    """(rows, columns). NaN stays blank."""
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    extent: tuple[float, float, float, float] | None = None
    """(left, right, bottom, top) in data units; None counts cells."""
    diverging: bool = False
    """Colours centred on zero."""
    limits: tuple[float, float] | None = None
    """Values of the two ends of the colour scale, for comparable maps; None: the smallest and
    largest value.
    """
    mark: tuple[int, int] | None = None
    """(row, column) of a cell to highlight."""
    x_names: Sequence[str] = ()
    """Names of the columns, if they have any."""
    y_names: Sequence[str] = ()
    """Names of the rows, if they have any."""
    unit: str = ""
    """Quantity and unit of the values, beside the colour bar."""
    cell_texts: Sequence[Sequence[str]] = ()
    """A short text for each cell, row by row, or none."""


@dataclass(frozen=True)
class ImageGrid:
    """Images with margins between them, enlarged until legible."""

    images: np.ndarray
    """(num, height, width) or (num, height, width, 3), values in [0, 1]."""
    captions: Sequence[str] = ()
    """One for each image, or none."""
    columns: int | None = None
    """Images in a row; None: those of `grid_columns`."""
    title: str = ""


class Tick(NamedTuple):
    """A labelled place on an axis."""

    position: float
    label: str


@dataclass(frozen=True)
class Curve:
    """A curve, with a band around it if given."""

    x: np.ndarray
    y: np.ndarray
    label: str = ""
    band: np.ndarray | None = None
    """Half width of a shaded band around y."""
    marked: bool = False
    """True for a dot at each point, where there are few."""
    colour: int | None = None
    """Number of its colour, the same for curves that belong together; None: its number among the
    curves.
    """
    shade: float | None = None
    """Place on a colour scale, 0 to 1, in place of a colour of its own; NaN: grey."""
    weight: Weight = "plain"


@dataclass(frozen=True)
class Lines:
    """Curves over a common axis."""

    curves: Sequence[Curve]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    """True only where all x are above 0."""
    log_y: bool = False
    """True only where all y are above 0."""
    size: tuple[float, float] = (5.6, 3.5)
    """(width, height) in inches, labels included."""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, the first on top."""

    names: Sequence[str]
    values: np.ndarray
    """(num,), in the order of the names."""
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    texts: Sequence[str] = ()
    """A text at the end of each bar, or none."""


@dataclass(frozen=True)
class PointGroup:
    """Points of one colour."""

    x: np.ndarray
    y: np.ndarray
    label: str = ""
    texts: Sequence[str] = ()
    """A short text in the place of each point, or none: dots."""
    weight: Literal["plain", "faint", "ring"] = "plain"
    """`ring` marks points of other groups, with their texts, if any, below."""


@dataclass(frozen=True)
class Points:
    """Points in a plane."""

    groups: Sequence[PointGroup]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_ticks: Sequence[Tick] = ()
    """Ticks of the axis; (): round numbers."""
    curves: Sequence[Curve] = ()
    """Lines among the points."""
    size: tuple[float, float] = (5.6, 4.6)
    """(width, height) in inches, labels included."""
    log_x: bool = False
    """True only where all x are above 0."""
    log_y: bool = False
    """True only where all y are above 0."""


@dataclass(frozen=True)
class Box:
    """A box of a diagram, centred on a cell of its grid."""

    text: str
    detail: str = ""
    """Second line: a formula, a shape."""
    column: float = 0.0
    row: float = 0.0
    """Counted from the top."""
    kind: Literal["data", "layer", "condition"] = "layer"


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes of a diagram, by their indices."""

    start: int
    end: int
    text: str = ""


@dataclass(frozen=True)
class Diagram:
    """Boxes on a grid, and arrows between them."""

    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    title: str = ""


@dataclass(frozen=True)
class Text:
    """Passages of text."""

    passages: Sequence[str]
    title: str = ""


Panel = Heatmap | ImageGrid | Lines | Bars | Points | Diagram | Text


@dataclass(frozen=True)
class Figure:
    """One or more panels; with `frames`, an animation of the figures in turn."""

    panels: Sequence[Panel]
    title: str = ""
    columns: int = 2
    """Panels in a row."""
    frames: Sequence[Figure] = field(default_factory=tuple)
    """Figures of an animated GIF, of which `panels` is the still image."""
    seconds_per_frame: float = 0.2
    alt: str = ""
    """Alternative text, in a sentence or two; "": made of the titles and labels."""

    @property
    def alternative_text(self) -> str:
        """`alt`, or a sentence for each panel from its kind, title and labels: at most 1,000
        characters.
        """
        texts = [self.alt] if self.alt else [self.title, *map(_describe, self.panels)]
        text = " ".join(filter(None, map(_sentence, texts)))
        if len(text) <= _ALT_CHARACTERS:
            return text
        return f"{text[: _ALT_CHARACTERS - 4]} ..."


def _sentence(text: str) -> str:
    """Return printable text on one line with a full stop; "" stays empty."""
    # Control characters and halves of pairs stand in no file of text.
    printable = "".join(c if c.isprintable() else " " for c in text)
    sentence = " ".join(printable.split())
    if not sentence or sentence.endswith((".", "!", "?")):
        return sentence
    return f"{sentence}."


def grid_columns(num: int) -> int:
    """Choose how many of `num` images stand in a row: 6 to 12, so that the last row is as full as
    it can be.
    """
    if num <= WANTED_COLUMNS:
        return max(1, num)

    def emptiness(columns: int) -> tuple[float, int, int]:
        """Empty share of the last row, then the distance to the wanted number; of two at one
        distance the wider.
        """
        return -num % columns / columns, abs(columns - WANTED_COLUMNS), -columns

    return min(range(6, 13), key=emptiness)


def evenly_spaced(last: int, num: int) -> list[int]:
    """Return at most `num` different integers from 0 to `last`, both included, evenly spaced."""
    return sorted({round(number * last / (num - 1)) for number in range(num)})


_KINDS = {
    Heatmap: "Heat map",
    ImageGrid: "Grid of images",
    Lines: "Curves",
    Bars: "Bars",
    Points: "Points",
    Diagram: "Diagram",
    Text: "Text",
}


def _describe(panel: Panel) -> str:
    """Kind and title, the axes, and the names of curves, bars or boxes."""
    if panel.title:
        about = f"{_KINDS[type(panel)]}: {panel.title}"
    else:
        about = _KINDS[type(panel)]
    axes = [label for axis in ("y_label", "x_label") if (label := getattr(panel, axis, ""))]
    about += f" ({' over '.join(axes)})" if axes else ""
    names: Sequence[str] = ()
    match panel:
        case Lines(curves=curves):
            names = [curve.label for curve in curves]
        case Points(groups=groups):
            names = [group.label for group in groups]
        case Bars(names=names):
            pass
        case Diagram(boxes=boxes):
            names = [box.text for box in boxes]
        case ImageGrid(images=images):
            about += f", {len(images)} images"
    return ": ".join(filter(None, (about, ", ".join(filter(None, names)))))
