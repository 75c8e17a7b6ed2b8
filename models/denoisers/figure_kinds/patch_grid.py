"""Pictures cut into patches."""

from __future__ import annotations

import numpy as np

LINE_COLOUR = (0.84, 0.37, 0.0)
ENLARGEMENT = 4
"""Screen pixels an image pixel before the grid's lines, one screen pixel thick, are drawn between patches."""


def cut_patches(picture: np.ndarray, size: int) -> np.ndarray:
    """Cut a picture into patches, row by row: (height, width[, 3]) -> (num, size, size[, 3])."""
    rows, columns = picture.shape[0] // size, picture.shape[1] // size
    grid = picture.reshape(rows, size, columns, size, *picture.shape[2:])
    return grid.swapaxes(1, 2).reshape(rows * columns, size, size, *picture.shape[2:])


def with_patch_lines(picture: np.ndarray, size: int) -> np.ndarray:
    """Enlarge a picture and draw coloured lines between its patches: RGB."""
    colour = picture if picture.ndim == 3 else picture[..., None].repeat(3, axis=2)
    large = colour.repeat(ENLARGEMENT, axis=0).repeat(ENLARGEMENT, axis=1)
    step = size * ENLARGEMENT
    large = np.insert(large, range(step, large.shape[0], step), LINE_COLOUR, axis=0)
    return np.insert(large, range(step, large.shape[1], step), np.array(LINE_COLOUR), axis=1)
