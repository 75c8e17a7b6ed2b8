"""Data: importers, Arrow stores, training and held-out rows, the resumable order of samples, the
loader.

`splits.open_data` opens the views of stores that a spec's `data` names; `orders.open_order` gives
the order whose batches are trained on; `loading.loader.Loader` fetches them ahead of the step;
`loading.batches.to_device` converts them to the ranges of a model. Images of several sizes are kept
in bucketed stores (`stores.bucketed_store`), each batch of one size. `write_store` writes a plain
store of `Column`s from a `Source`.
"""

from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.writing import write_store

__all__ = ["Column", "Source", "write_store"]
