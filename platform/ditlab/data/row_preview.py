"""Preview of chosen rows of a view: pictures, or a line of text each."""

from collections.abc import Sequence

import numpy as np

from denoisers.contract import TextCodec
from denoisers.figures import ImageGrid
from ditlab.data.images.captions import CAPTION, decode_captions
from ditlab.data.preview import is_image, shrunk
from ditlab.data.stores.view import View

LONGEST_TEXT = 60
"""Characters of a row's text that are shown."""


def row_pictures(view: View, indices: np.ndarray, captions: Sequence[str], title: str) -> ImageGrid | None:
    """Make a grid of a view's rows; None where no column holds images. Large images are shrunk."""
    image = next((name for name, column in view.columns.items() if is_image(column)), None)
    if image is None or not len(indices):
        return None
    low, high = view.columns[image].value_range or (0.0, 1.0)
    values = (shrunk(view.padded(image, indices).numpy()) - low) / (high - low)
    pictures = values[:, 0] if values.shape[1] == 1 else values.transpose(0, 2, 3, 1)
    return ImageGrid(np.clip(pictures, 0.0, 1.0), captions=captions, columns=8, title=title)


def row_texts(view: View, indices: np.ndarray, text: TextCodec | None) -> list[str]:
    """Return a line about each row: its text or caption, its class, its chromosome; empty where it has none."""
    lines: list[list[str]] = [[] for _ in indices]
    if not len(indices):
        return []
    if text is not None and "tokens" in view.columns:
        for line, ids in zip(lines, view.padded("tokens", indices).tolist(), strict=True):
            line.append(repr(text.decode(ids)[:LONGEST_TEXT]))
    elif CAPTION in view.columns:
        for line, caption in zip(lines, decode_captions(view.padded(CAPTION, indices).numpy()), strict=True):
            line.append(repr(caption[:LONGEST_TEXT]))
    for name, column in view.columns.items():
        if column.shape:
            continue
        for line, value in zip(lines, view.padded(name, indices).tolist(), strict=True):
            shown = column.names[int(value)] if column.names and column.num_classes else value
            line.append(f"{name} {shown}")
    return [", ".join(line) for line in lines]
