"""Preview of a store: a few samples as a figure or as text."""

from collections.abc import Sequence

import numpy as np

from denoisers.figures import Figure, ImageGrid
from ditlab.data.images.captions import CAPTION, decode_captions
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.store import Store
from ditlab.data.text.store_tokenizer import store_tokenizer

LONGEST_SIDE = 160
"""Pixels of a shown image's longer side: larger images are shrunk to less than twice as many."""
BUCKETS_BELOW = 8
"""Sizes shown below each other; more sizes take another column."""


def sample_grid(store: AnyStore, num: int) -> Figure | None:
    """Make a figure of about `num` samples with captions or classes; None where no column holds images.

    Each image size has a grid of its own with as many samples, spread evenly over its rows. Images are columns of shape
    (1 or 3, height, width) with a value range, which is mapped onto [0, 1]; large ones are shrunk.
    """
    image = next((name for name, column in store.columns.items() if is_image(column)), None)
    if image is None:
        return None
    parts = store.parts
    each = max(1, num // len(parts))
    grids = [_grid(part, image, each) for part in parts]
    title = "" if parts == (store,) else f"{store.name}: {len(store):,} images by height x width"
    return Figure(panels=grids, columns=-(-len(parts) // BUCKETS_BELOW), title=title)


def _grid(store: Store, image: str, num: int) -> ImageGrid:
    rows = _spread(store, num)
    low, high = store.columns[image].value_range or (0.0, 1.0)
    values = (shrunk(store.gather(image, rows).numpy()) - low) / (high - low)
    pictures = values[:, 0] if values.shape[1] == 1 else values.transpose(0, 2, 3, 1)
    title = f"{store.name}: {len(rows)} of {len(store):,}"
    return ImageGrid(pictures, captions=_captions(store, rows), columns=8, title=title)


def _captions(store: Store, rows: np.ndarray) -> Sequence[str]:
    if CAPTION in store.columns:
        return decode_captions(store.gather(CAPTION, rows).numpy())
    label = next((name for name, column in store.columns.items() if column.num_classes and not column.shape), None)
    if label is None:
        return ()
    names = store.columns[label].names
    return tuple(names[int(n)] if names else str(int(n)) for n in store.gather(label, rows))


def shrunk(images: np.ndarray) -> np.ndarray:
    """Return float64 (num, channels, height, width), large images averaged over squares of pixels."""
    factor = max(1, max(images.shape[2:]) // LONGEST_SIDE)
    height, width = (side // factor for side in images.shape[2:])
    whole = images[:, :, : height * factor, : width * factor].astype(np.float64)
    return whole.reshape(*images.shape[:2], height, factor, width, factor).mean(axis=(3, 5))


def sample_text(store: AnyStore, num: int) -> dict[int, str]:
    """Decode `num` rows spread evenly over a store of tokens, by row number; {} for a store without tokens.

    Raises UserError where the store's tokeniser needs a library that is not installed.
    """
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
