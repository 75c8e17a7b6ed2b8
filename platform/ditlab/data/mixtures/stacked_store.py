"""Rows of several stores of one shape, as one store."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ditlab.data.stores.bucket_manifest import merged_column
from ditlab.data.stores.layout import BlockLayout
from ditlab.data.stores.manifest import Source, StoredColumn, StoreManifest
from ditlab.data.stores.store import Store


class StackedStore(Store):
    """Stores of one shape, whose rows are numbered store after store."""

    def __init__(self, stores: Sequence[Store], columns: Sequence[str]):
        """Join the given columns, which the stores hold alike."""
        self._stores = tuple(stores)
        self._store_ends = np.cumsum([len(store) for store in stores])
        merged = {name: _merged([store.columns[name] for store in stores]) for name in columns}
        super().__init__(stores[0].path, _manifest(stores, merged))

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(store.size for store in self._stores)

    def verify(self) -> None:
        """Hash every file of every store. Raises UserError for the first one that was altered."""
        for store in self._stores:
            store.verify()

    @cached_property
    def layout(self) -> BlockLayout:
        """Unused: blocks of several stores differ in size."""
        raise NotImplementedError

    def expect(self, blocks: np.ndarray) -> None:
        """Take note that blocks will be read soon; they are numbered store after store."""
        ends = np.cumsum([store.layout.num_blocks for store in self._stores])
        numbers = np.searchsorted(ends, blocks, side="right")
        for number, store in enumerate(self._stores):
            if (own := blocks[numbers == number]).size or not blocks.size:
                store.expect(own - (int(ends[number]) - store.layout.num_blocks))

    def close(self) -> None:
        """Give up what the stores hold beside their memory. Closing twice is fine."""
        for store in self._stores:
            store.close()

    def tensor(self, column: str) -> Tensor:
        """Return a copy of the whole column, (rows, *shape)."""
        return self.gather(column, np.arange(len(self)))

    def gather(self, column: str, rows: np.ndarray, out: Tensor | None = None) -> Tensor:
        """Copy the given rows of a column in the given order: (len(rows), *shape).

        `rows`: int64, in [0, len(store)); `out`: tensor to copy into.
        """
        stored = self.columns[column]
        if out is None:
            out = torch.empty((len(rows), *stored.shape), dtype=getattr(torch, stored.dtype))
        numbers = np.searchsorted(self._store_ends, rows, side="right")
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            store = self._stores[number]
            own = rows[here] - (int(self._store_ends[number]) - len(store))
            shape = store.columns[column].shape
            if len(here) == len(rows) and shape == stored.shape:
                return store.gather(column, own, out)
            # through NumPy: torch cannot assign to indices of uint16
            values = out.numpy()
            if shape == stored.shape:
                values[here] = store.gather(column, own).numpy()
            else:
                values[here, : shape[0]] = store.gather(column, own).numpy()
                values[here, shape[0] :] = 0
        return out


def _merged(columns: Sequence[StoredColumn]) -> StoredColumn:
    """Merge a column of several stores; one of several lengths gets the longest."""
    lengths = [column.shape[:1] for column in columns]
    return merged_column(columns).model_copy(update={"shape": (*max(lengths), *columns[0].shape[1:])})


def _manifest(stores: Sequence[Store], columns: Mapping[str, StoredColumn]) -> StoreManifest:
    first = stores[0].manifest
    return StoreManifest(
        name=first.name,
        description=first.description,
        rows=sum(len(store) for store in stores),
        columns=dict(columns),
        shards=tuple(shard for store in stores for shard in store.manifest.shards),
        source=Source(kind="mixture"),
        text=first.text,
        attachments=dict(first.attachments),
        fingerprint=first.fingerprint,
    )
