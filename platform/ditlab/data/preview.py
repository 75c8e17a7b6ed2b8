"""Preview of a store: a few samples, or chosen rows of a view, as a figure or as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from denoisers.contract import TextCodec
from denoisers.figures import Figure, ImageGrid
from ditlab.data.images.captions import CAPTION, decode_captions
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.view import View
from ditlab.data.text.tokenizer import store_tokenizer

LONGEST_SIDE = 160
"""Pixels of a shown image's longer side: larger images are shrunk to less than twice as many."""
BUCKETS_BELOW = 8
"""Sizes shown below each other; more sizes take another column."""
LONGEST_TEXT = 60
"""Characters of a row's text that are shown."""


def sample_grid(store: AnyStore, num: int) -> Figure | None:
    """Make a figure of about `num` samples with captions or classes; None where no column holds images.

    Images are columns of shape (1 or 3, height, width) with a value range; each size has a grid of its own.
    """
    image = next((name for name, column in store.columns.items() if is_image(column)), None)
    if image is None:
        return None
    parts, grids = store.parts, []
    for part in parts:
        rows = _spread(part, max(1, num // len(parts)))
        pictures = _pictures(part.gather(image, rows).numpy(), part.columns[image])
        caption = f"{part.name}: {len(rows)} of {len(part):,}"
        captions: Sequence[str] = ()
        label = next((name for name, column in part.columns.items() if column.num_classes and not column.shape), None)
        if CAPTION in part.columns:
            captions = decode_captions(part.gather(CAPTION, rows).numpy())
        elif label is not None:
            numbers, names = part.gather(label, rows).tolist(), part.columns[label].names
            captions = [names[number] if names else str(number) for number in numbers]
        grids.append(ImageGrid(pictures, captions=captions, columns=8, title=caption))
    title = "" if parts == (store,) else f"{store.name}: {len(store):,} images by height x width"
    return Figure(panels=grids, columns=-(-len(parts) // BUCKETS_BELOW), title=title)


def _pictures(images: np.ndarray, column: StoredColumn) -> np.ndarray:
    """Return images shrunk and in [0, 1], (num, height, width) if grey, else (num, height, width, 3)."""
    low, high = column.value_range or (0.0, 1.0)
    values = (shrunk(images) - low) / (high - low)
    return values[:, 0] if values.shape[1] == 1 else values.transpose(0, 2, 3, 1)


def shrunk(images: np.ndarray) -> np.ndarray:
    """Return float64 (num, channels, height, width), large images averaged over squares of pixels."""
    factor = max(1, max(images.shape[2:]) // LONGEST_SIDE)
    height, width = (side // factor for side in images.shape[2:])
    whole = images[:, :, : height * factor, : width * factor].astype(np.float64)
    return whole.reshape(*images.shape[:2], height, factor, width, factor).mean(axis=(3, 5))


def sample_text(store: AnyStore, num: int) -> dict[int, str]:
    """Decode `num` rows spread over a store of tokens, by row number; {} without. Raises as `open_tokenizer` does."""
    tokenizer = store_tokenizer(store)
    if tokenizer is None:
        return {}
    rows = _spread(store, num)
    return {
        int(row): tokenizer.decode(ids) for row, ids in zip(rows, store.gather("tokens", rows).tolist(), strict=True)
    }


def _spread(store: AnyStore, num: int) -> np.ndarray:
    return np.unique(np.linspace(0, len(store) - 1, num=num).round().astype(np.int64))


def is_image(column: StoredColumn) -> bool:
    """Return True for a column of grey or coloured images with a value range."""
    return len(column.shape) == 3 and column.shape[0] in (1, 3) and column.value_range is not None


def row_pictures(view: View, indices: np.ndarray, captions: Sequence[str], title: str) -> ImageGrid | None:
    """Make a grid of a view's rows; None where no column holds images. Large images are shrunk."""
    image = next((name for name, column in view.columns.items() if is_image(column)), None)
    if image is None or not len(indices):
        return None
    pictures = _pictures(view.padded(image, indices).numpy(), view.columns[image])
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
