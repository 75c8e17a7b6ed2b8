"""Views of a mixture: the training and the held-out rows of all parts."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from ditlab.data.mixtures.joined_store import JoinedStore
from ditlab.data.mixtures.part_rows import RowsInTurns, StackedRows
from ditlab.data.stores.view import RowNumbers, View


def joined_views(
    train: Mapping[str, View], held_out: Mapping[str, View], origin: str, draw: Literal["auto", "sample", "batch"]
) -> tuple[View, View]:
    """Join the views of parts, by name: training rows part after part, held-out rows in turns.

    Their store is a `JoinedStore`. Raises UserError where the parts cannot be joined.
    """
    store = JoinedStore({name: view.store for name, view in train.items()}, draw)
    is_same = all(held_out[name].store is view.store for name, view in train.items())
    # MNIST is evaluated on the store of its test files
    other = store if is_same else JoinedStore({name: view.store for name, view in held_out.items()}, store.draw)
    return (
        View(store, _listed(StackedRows(store, train), train), origin),
        View(other, _listed(RowsInTurns(other, held_out), held_out), origin),
    )


def _listed(rows: StackedRows, views: Mapping[str, View]) -> RowNumbers:
    """Return the rows as a list where every part has one already."""
    return rows[np.arange(len(rows))] if all(isinstance(view.rows, np.ndarray) for view in views.values()) else rows
