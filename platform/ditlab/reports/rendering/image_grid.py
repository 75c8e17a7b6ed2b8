"""Layout of an image grid as one picture: enlarged tiles with margins and captions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import numpy as np

from ditlab.reports.rendering.theme import CAPTION_POINTS, DPI, THEME, printable
from ditlab_models.figures import ImageGrid, grid_columns
from ditlab_models.pixels import to_pixels

_LEGIBLE_PIXELS = 88
"""Smallest length of a tile's longer side, so that an 8x8 digit is legible."""
_FEW_PIXELS = 168
"""The same for grids of up to four images."""
_CAPTION_LINES = 3
_EM = CAPTION_POINTS * DPI / 72
"""Size of a caption's letters in pixels."""
MARGIN = 8
"""Pixels around a tile."""
_CAPTION_CHARACTERS = 400
"""Characters of a caption that are wrapped, more than any three lines hold."""
_NOT_FINITE = "not finite"
"""Caption of an image with such pixels, which are magenta, before its own."""


class _CaptionWrapper(textwrap.TextWrapper):
    """Wrapper of captions, which breaks lines between words, and between those of a folder's name:
    `fried_rice`.
    """

    wordsep_simple_re = re.compile(r"([\t\n ]+|(?<=\w[-_/])(?=\w))")


def _captions(grid: ImageGrid) -> list[str]:
    """Captions of a grid's images, which say where one has pixels that are not finite."""
    finite = [bool(np.isfinite(np.asarray(image, dtype=float)).all()) for image in grid.images]
    captions = list(grid.captions)
    if all(finite):
        return captions
    captions += [""] * (len(finite) - len(captions))
    for number, is_finite in enumerate(finite):
        if not is_finite:
            captions[number] = " ".join(filter(None, [_NOT_FINITE, captions[number]]))
    return captions


class GridLayout:
    """Geometry of an image grid in pixels."""

    def __init__(self, grid: ImageGrid) -> None:
        self.grid = grid
        num, image_height, image_width = grid.images.shape[:3]
        self.columns = max(1, min(grid.columns or grid_columns(num), num))
        rows = max(1, -(-num // self.columns))
        legible = _FEW_PIXELS if num <= 4 else _LEGIBLE_PIXELS
        # a whole number, so that every pixel becomes an equal square
        self.scale = max(1, -(-legible // max(image_height, image_width)))
        self.tile_height = image_height * self.scale
        self.tile_width = image_width * self.scale
        characters = max(6, int((self.tile_width + MARGIN) / (0.58 * _EM)))
        wrapper = _CaptionWrapper(
            characters, max_lines=_CAPTION_LINES, placeholder=" ...", break_on_hyphens=False
        )
        self.wrapped = [
            wrapper.wrap(printable(text[:_CAPTION_CHARACTERS])) for text in _captions(grid)
        ]
        """Lines of each caption, as wide as a tile."""
        lines = max(map(len, self.wrapped), default=0)
        self.caption_height = round(lines * 1.3 * _EM) + (4 if lines else 0)
        self.height = rows * (self.tile_height + self.caption_height + MARGIN) + MARGIN
        self.width = self.columns * (self.tile_width + MARGIN) + MARGIN

    def corner(self, index: int) -> tuple[int, int]:
        """Top left corner of a tile: (top, left)."""
        row, column = divmod(index, self.columns)
        top = MARGIN + row * (self.tile_height + self.caption_height + MARGIN)
        return top, MARGIN + column * (self.tile_width + MARGIN)

    def draw(self) -> np.ndarray:
        """Draw the picture, (height, width, 3) uint8, with the page's colour between the tiles."""
        background, outline = (
            np.frombuffer(bytes.fromhex(colour[1:]), np.uint8)
            for colour in (THEME.background, THEME.blank)
        )
        picture = np.tile(background, (self.height, self.width, 1))
        for index, image in enumerate(self.grid.images):
            top, left = self.corner(index)
            colours = to_pixels(np.asarray(image, dtype=float))
            if colours.ndim == 2:
                colours = colours[..., None].repeat(3, axis=-1)
            tile = colours.repeat(self.scale, axis=0).repeat(self.scale, axis=1)
            picture[top : top + self.tile_height, left : left + self.tile_width] = tile
            # An outline, as an image of the page's colour has no visible border.
            picture[[top - 1, top + self.tile_height], left - 1 : left + self.tile_width + 1] = (
                outline
            )
            picture[top - 1 : top + self.tile_height + 1, [left - 1, left + self.tile_width]] = (
                outline
            )
        return picture

    def captions(self) -> Iterator[tuple[float, float, str]]:
        """Lines of captions as (x, y, text), centred on x and standing on y, in pixels; level in a
        row of tiles.
        """
        for index, lines in enumerate(self.wrapped[: len(self.grid.images)]):
            top, left = self.corner(index)
            first = top + self.tile_height + 3 + 0.8 * _EM  # below the height of tall letters
            for number, line in enumerate(lines):
                yield left + self.tile_width / 2, first + number * 1.25 * _EM, line
