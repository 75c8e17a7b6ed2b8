"""View: some rows of a store, in an order of its own. Imports torch on use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ditlab.data.stores.block_index import group_places
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.row_changes import RowChanges, change_rows

if TYPE_CHECKING:
    from torch import Tensor


class RowSequence(ABC):
    """Row numbers of a store that are computed when they are read, and what is known of them
    without reading all.
    """

    bucket_counts: np.ndarray
    """Rows of each of the store's `parts`, int64 (parts,)."""
    key: str
    """Text that decides the rows, for a given store."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Return the store's rows at places (int64, in [0, len)), int64."""

    @abstractmethod
    def in_part(self, part: int) -> RowSequence:
        """Return the rows of one of the store's `parts`, by their numbers in it."""

    @abstractmethod
    def shuffled(self, text: str) -> RowSequence:
        """Return the same rows in an order that belongs to a text, whose first few lie in few
        blocks.
        """


RowNumbers = np.ndarray | RowSequence
"""Row numbers of a store: an int64 array, or numbers that are computed when they are read."""


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
    rows: RowNumbers
    """int64 row numbers of the store, (len(view),): a list of them, or computed when they are
    read.
    """
    origin: str
    """Name of these data in messages, as the experiment gives it: `data.kind=digits`."""
    changes: tuple[RowChanges, ...] = ()
    """Changes of the store's rows, by range; none for rows as they are stored."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> Mapping[str, StoredColumn]:
        """Columns of the store by name."""
        return self.store.columns

    @property
    def buckets(self) -> np.ndarray:
        """Number of each row's bucket in the store's `parts`, int64 (len(view),): 0 in a plain
        store.
        """
        return self.store.bucket_of(self.rows[np.arange(len(self))])

    @property
    def bucket_counts(self) -> np.ndarray:
        """Rows of each of the store's `parts`, int64 (parts,)."""
        if isinstance(self.rows, RowSequence):
            return self.rows.bucket_counts
        if len(self.store.parts) == 1:
            return np.array([len(self)])
        return np.bincount(self.buckets, minlength=len(self.store.parts))

    @property
    def rows_key(self) -> bytes:
        """Bytes that are equal for views of the same rows of a store."""
        if isinstance(self.rows, RowSequence):
            return self.rows.key.encode()
        return self.rows[np.arange(len(self))].tobytes()

    def first(self, num: int | None) -> View:
        """Return the view's first `num` rows; all for None."""
        if num is None or num >= len(self):
            return self
        return replace(self, rows=self.rows[np.arange(num)])

    def in_part(self, number: int) -> View:
        """Return the view's rows of one of the store's `parts`, as a view of that part."""
        part = self.store.parts[number]
        first = sum(map(len, self.store.parts[:number]))
        changes = tuple(
            replace(each, stop=each.stop - first) for each in self.changes if each.stop > first
        )
        if isinstance(self.rows, RowSequence):
            return replace(self, store=part, rows=self.rows.in_part(number), changes=changes)
        rows = self.rows[np.flatnonzero(self.buckets == number)] - first
        return replace(self, store=part, rows=rows, changes=changes)

    def gather(self, column: str, indices: np.ndarray) -> Tensor:
        """Return rows at `indices` (int64, in [0, len(view))) of one bucket: (num, *shape) in the
        store's dtype.

        They are as held-out rows are measured: no image is mirrored, and of several captions it is
        the first.
        """
        rows = self.rows[indices]
        values = self.store.gather(column, rows)
        if self.changes:
            change_rows(self.changes, {column: values}, rows)
        return values

    def padded(self, column: str, indices: np.ndarray) -> Tensor:
        """Return rows as `gather` does, of any buckets; those shorter than the longest are padded
        with zeros.
        """
        groups = group_places(self.store.bucket_of(self.rows[indices]))
        if len(groups) <= 1:
            return self.gather(column, indices)
        parts = {
            bucket: self.gather(column, indices[places]).numpy()
            for bucket, places in groups.items()
        }
        longest = np.max([part.shape[1:] for part in parts.values()], axis=0).astype(int)
        import torch

        # through NumPy: torch cannot assign to indices of uint16
        out = np.zeros((len(indices), *longest), next(iter(parts.values())).dtype)
        for bucket, places in groups.items():
            inside: Any = (places, *map(slice, parts[bucket].shape[1:]))
            out[inside] = parts[bucket]
        return torch.from_numpy(out)

    def batches(self, size: int, limit: int | None = None) -> Iterator[BatchRows]:
        """Cut the view's first `limit` rows (None: all), bucket after bucket, into batches of up to
        `size` rows.

        A bucket's rows keep the view's order; a row's `bucket` and place there depend on neither
        number.
        """
        num = len(self) if limit is None else min(limit, len(self))
        if len(self.store.parts) == 1:
            groups = {0: np.arange(num)}
        else:
            groups = group_places(self.store.bucket_of(self.rows[np.arange(num)]))
        for bucket, places in groups.items():
            for first in range(0, len(places), size):
                yield BatchRows(places[first : first + size], bucket, first)

    def fullest(self) -> View:
        """Return the view's rows of the bucket that has most of them; all rows of a plain store."""
        counts = self.bucket_counts
        if np.count_nonzero(counts) <= 1:
            return self
        return self.in_part(int(counts.argmax()))
