"""Preview of a store: a few samples, as a figure or as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ditlab.data.images.captions import decode_captions
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.row_changes import CAPTION
from ditlab.data.text.tokenizer import store_tokenizer
from ditlab_models.figures import Figure, ImageGrid

LONGEST_SIDE = 160
"""Pixels of a shown image's longer side: larger images are shrunk to less than twice as many."""
BUCKETS_BELOW = 8
"""Sizes shown below each other; more sizes take another column."""


def sample_grid(store: AnyStore, num: int) -> Figure | None:
    """Make a figure of about `num` samples with captions or classes; None where no column holds images.

    Images are columns of shape (1 or 3, height, width) with a value range; each size has a grid of its own.
    """
    image = _image_column(store.columns)
    if image is None:
        return None
    parts = store.parts
    grids = []
    for part in parts:
        rows = _spread(part, max(1, num // len(parts)))
        pictures = _pictures(part.gather(image, rows).numpy(), part.columns[image])
        caption = f"{part.name}: {len(rows)} of {len(part):,}"
        captions: Sequence[str] = ()
        label = next((name for name, column in part.columns.items() if column.num_classes and not column.shape), None)
        if CAPTION in part.columns:
            captions = decode_captions(part.gather(CAPTION, rows).numpy())
        elif label is not None:
            numbers = part.gather(label, rows).tolist()
            names = part.columns[label].names
            captions = [names[number] if names else str(number) for number in numbers]
        grids.append(ImageGrid(pictures, captions=captions, title=caption))
    title = "" if parts == (store,) else f"{store.name}: {len(store):,} images by height x width"
    return Figure(panels=grids, columns=-(-len(parts) // BUCKETS_BELOW), title=title)


def _image_column(columns: Mapping[str, StoredColumn]) -> str | None:
    """Return the first column of grey or coloured images with a value range."""
    images = (name for name, each in columns.items() if each.value_range and each.shape[:-2] in ((1,), (3,)))
    return next(images, None)


def _pictures(images: np.ndarray, column: StoredColumn) -> np.ndarray:
    """Return images in [0, 1], (num, height, width) if grey, else with 3 channels; large ones averaged over squares."""
    low, high = column.value_range or (0.0, 1.0)
    factor = max(1, max(images.shape[2:]) // LONGEST_SIDE)
    height, width = (side // factor for side in images.shape[2:])
    whole = images[:, :, : height * factor, : width * factor].astype(np.float64)
    small = whole.reshape(*images.shape[:2], height, factor, width, factor).mean(axis=(3, 5))
    values = (small - low) / (high - low)
    return values[:, 0] if values.shape[1] == 1 else values.transpose(0, 2, 3, 1)


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
