"""A few samples of a store, as a picture's description or as text."""

import numpy as np

from denoisers.figures import Figure, ImageGrid
from ditlab.data.manifest import StoredColumn
from ditlab.data.store import Store
from ditlab.data.tokenizer import store_tokenizer


def sample_grid(store: Store, num: int) -> Figure | None:
    """`num` samples spread evenly over the store, captioned with their class; None where no column holds images.

    Images are columns of shape (1 or 3, height, width) with a value range, which is mapped onto [0, 1].
    """
    image = next((name for name, column in store.columns.items() if _is_image(column)), None)
    if image is None:
        return None
    rows = _spread(store, num)
    low, high = store.columns[image].value_range or (0.0, 1.0)
    values = (store.gather(image, rows).numpy().astype(np.float64) - low) / (high - low)
    pictures = values[:, 0] if values.shape[1] == 1 else values.transpose(0, 2, 3, 1)
    label = next((name for name, column in store.columns.items() if column.num_classes and not column.shape), None)
    captions = () if label is None else tuple(str(int(n)) for n in store.gather(label, rows))
    title = f"{store.name}: {len(rows)} of {len(store):,}"
    return Figure(panels=(ImageGrid(pictures, captions=captions, columns=8, title=title),), columns=1)


def sample_text(store: Store, num: int) -> dict[int, str]:
    """`num` rows spread evenly over a store of tokens, as text by row number; none of a store of other things.

    Raises UserError where the store's tokeniser needs a library that is not installed.
    """
    tokenizer = store_tokenizer(store)
    if tokenizer is None:
        return {}
    rows = _spread(store, num)
    return {
        int(row): tokenizer.decode(ids) for row, ids in zip(rows, store.gather("tokens", rows).tolist(), strict=True)
    }


def _spread(store: Store, num: int) -> np.ndarray:
    return np.unique(np.linspace(0, len(store) - 1, num=num).round().astype(np.int64))


def _is_image(column: StoredColumn) -> bool:
    return len(column.shape) == 3 and column.shape[0] in (1, 3) and column.value_range is not None
