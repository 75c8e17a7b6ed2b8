"""Random changes of training samples: images mirrored, one of several captions; by seed and draw
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ditlab.data.permutations import hashed_keys, key_of

if TYPE_CHECKING:
    from torch import Tensor

CAPTION = "caption"
"""Name of the column of captions."""

IMAGE = "image"
"""Name of the column of images."""


@dataclass(frozen=True)
class RowChanges:
    """Changes of a range of a store's rows, which follows the range before."""

    stop: int
    """Row behind the last one."""
    flip: float = 0.0
    """Probability that an image is mirrored from left to right in training."""
    one_caption: bool = False
    """True where a line of a caption is taken: in training a random one, of held-out rows the
    first.
    """


def keyed_uniform(name: str, seed: int, draws: np.ndarray) -> np.ndarray:
    """Return a number of U[0, 1) for each draw, float64: the upper 53 bits of SplitMix64's hash."""
    return (hashed_keys(key_of(f"ditlab.{name}/{seed}"), draws) >> np.uint64(11)) * 2.0**-53


def change_rows(
    changes: Sequence[RowChanges],
    columns: Mapping[str, Tensor],
    rows: np.ndarray,
    draws: np.ndarray | None = None,
    seed: int = 0,
) -> None:
    """Change rows of a store in place: columns (num, *shape) by name, of `rows`, int64 (num,).

    `draws`: number of each sample among all that the run has drawn, int64 (num,); None for held-out
    rows.
    """
    of_row = np.searchsorted([each.stop for each in changes], rows, side="right")
    if IMAGE in columns and draws is not None and any(each.flip for each in changes):
        images = columns[IMAGE].numpy()
        mirrored = (
            keyed_uniform("flip", seed, draws) < np.array([each.flip for each in changes])[of_row]
        )
        images[mirrored] = images[mirrored][..., ::-1]
    if CAPTION in columns and any(each.one_caption for each in changes):
        captions = columns[CAPTION].numpy()
        if draws is None:
            chosen = np.zeros(len(rows))
        else:
            chosen = keyed_uniform("caption", seed, draws)
        for place in np.flatnonzero(np.array([each.one_caption for each in changes])[of_row]):
            lines = captions[place].tobytes().rstrip(b"\0").split(b"\n")
            line = lines[int(chosen[place] * len(lines))]
            captions[place] = 0
            captions[place, : len(line)] = np.frombuffer(line, np.uint8)
