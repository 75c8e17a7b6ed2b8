"""Pictures as bytes: the one place where values become whole numbers, and where those that no byte
holds are found.

Needs numpy arrays and torch's methods alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

NOT_FINITE = (255, 0, 255)
"""Magenta: a pixel that is NaN or infinite is not mistaken for a black or white one."""


class NotFiniteError(ValueError):
    """Images hold NaN or infinities, which no byte holds; the message counts them."""

    def __init__(self, num: int, total: int) -> None:
        super().__init__(f"{num:,} of {total:,} images hold values that are not finite (NaN)")


def num_not_finite(images: Tensor) -> int:
    """Number of samples (num, ...) with a value that is NaN or infinite."""
    if not images.is_floating_point():
        return 0
    return int((~images.isfinite()).reshape(len(images), -1).any(1).sum())


def to_bytes(images: Tensor) -> Tensor:
    """Round images in [-1, 1] to uint8, 127.5 steps to 1; values beyond are clipped. Raises
    NotFiniteError for NaN and infinities.
    """
    num = num_not_finite(images)
    if num:
        raise NotFiniteError(num, len(images))
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).byte()


def to_pixels(picture: np.ndarray) -> np.ndarray:
    """Round a picture (height, width, 3), or (height, width) in grey, in [0, 1] to uint8. Pixels
    that are not finite become `NOT_FINITE`, and a grey picture with such is in colour.
    """
    values = np.asarray(picture)
    is_finite = np.isfinite(values)
    if values.ndim == 3:
        is_finite = is_finite.all(axis=-1)
    pixels = np.rint(np.clip(np.nan_to_num(values), 0.0, 1.0) * 255).astype(np.uint8)
    if is_finite.all():
        return pixels
    if pixels.ndim == 2:
        pixels = pixels[..., None].repeat(3, axis=-1)
    pixels[~is_finite] = NOT_FINITE
    return pixels
