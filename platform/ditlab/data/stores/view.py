"""View: some rows of a store, in an order of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import StoredColumn


@dataclass(frozen=True)
class BatchRows:
    """Rows of a view of one shape, which make a batch."""

    indices: np.ndarray
    """int64 places in the view, ascending."""
    bucket: int
    """Number of their bucket in the store's `parts`."""
    first: int
    """Place of the first one among the view's rows of this bucket, whose others follow it."""


@dataclass(frozen=True)
class View:
    """Some rows of a store, in an order of their own."""

    store: AnyStore
    rows: np.ndarray
    """int64 row numbers of the store, (len(view),)."""
    origin: str
    """Name of these data in messages, as the experiment gives it: `data.kind=digits`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> Mapping[str, StoredColumn]:
        """Columns of the store by name."""
        return self.store.columns

    @property
    def buckets(self) -> np.ndarray:
        """Number of each row's bucket in the store's `parts`, int64 (len(view),): 0 in a plain store."""
        return self.store.bucket_of(self.rows)

    def gather(self, column: str, indices: np.ndarray) -> Tensor:
        """Return the view's rows at `indices` (int64, in [0, len(view))), (len(indices), *shape), in the store's dtype.

        All must be of one bucket.
        """
        return self.store.gather(column, self.rows[indices])

    def padded(self, column: str, indices: np.ndarray) -> Tensor:
        """Return rows as `gather` does, of any buckets; those shorter than the longest are padded with zeros."""
        groups = _groups(self.store.bucket_of(self.rows[indices]))
        if len(groups) <= 1:
            return self.gather(column, indices)
        parts = {bucket: self.gather(column, indices[places]).numpy() for bucket, places in groups.items()}
        longest = np.max([part.shape[1:] for part in parts.values()], axis=0).astype(int)
        # through NumPy: torch cannot assign to indices of uint16
        out = np.zeros((len(indices), *longest), next(iter(parts.values())).dtype)
        for bucket, places in groups.items():
            inside: Any = (places, *map(slice, parts[bucket].shape[1:]))
            out[inside] = parts[bucket]
        return torch.from_numpy(out)

    def batches(self, size: int, limit: int | None = None) -> Iterator[BatchRows]:
        """Cut the view's first `limit` rows (None: all) into batches of up to `size` rows of one bucket.

        Buckets come one after the other. Within a bucket the rows keep the view's order, and a row's `bucket` and place
        there depend on neither number.
        """
        for bucket, places in _groups(self.buckets[:limit]).items():
            for first in range(0, len(places), size):
                yield BatchRows(places[first : first + size], bucket, first)

    def fullest(self) -> "View":
        """Return the view's rows of the bucket that has most of them; all rows of a plain store."""
        groups = _groups(self.buckets)
        return replace(self, rows=self.rows[max(groups.values(), key=len)]) if groups else self


def _groups(buckets: np.ndarray) -> dict[int, np.ndarray]:
    """Return places by bucket number, both ascending, int64 each."""
    order = np.argsort(buckets, kind="stable")
    numbers, starts = np.unique(buckets[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)) if len(order) else {}
