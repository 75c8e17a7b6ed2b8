"""Figures as data, for a renderer elsewhere. Needs numpy arrays only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


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
    """Values of the two ends of the colour scale, for comparable maps; None: the smallest and largest value."""
    mark: tuple[int, int] | None = None
    """(row, column) of a cell to highlight."""
    x_names: Sequence[str] = ()
    """Names of the columns, if they have any."""
    y_names: Sequence[str] = ()
    """Names of the rows, if they have any."""


@dataclass(frozen=True)
class ImageGrid:
    """Images with margins between them, enlarged until legible."""

    images: np.ndarray
    """(num, height, width) or (num, height, width, 3), values in [0, 1]."""
    captions: Sequence[str] = ()
    """One for each image, or none."""
    columns: int = 8
    title: str = ""


@dataclass(frozen=True)
class Curve:
    """A curve, with a band around it if given."""

    x: np.ndarray
    y: np.ndarray
    label: str = ""
    band: np.ndarray | None = None
    """Half width of a shaded band around y."""


@dataclass(frozen=True)
class Lines:
    """Curves over a common axis."""

    curves: Sequence[Curve]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    log_y: bool = False


@dataclass(frozen=True)
class Text:
    """Passages of text."""

    passages: Sequence[str]
    title: str = ""


Panel = Heatmap | ImageGrid | Lines | Text


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
