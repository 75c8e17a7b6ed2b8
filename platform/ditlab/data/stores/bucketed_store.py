"""Bucketed store: images of several sizes, an ordinary store for each size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ditlab.data.stores.block_index import WHOLE_BYTES
from ditlab.data.stores.manifest import (
    BUCKETS_NAME,
    MANIFEST_NAME,
    BucketsManifest,
    merged_column,
    read_manifest,
)
from ditlab.data.stores.store import Store
from ditlab.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


class BucketedStore:
    """Open bucketed store. Rows are numbered bucket after bucket, and read within one bucket at a
    time.
    """

    def __init__(self, path: Path, manifest: BucketsManifest, parts: Sequence[Store]):
        """Make a store of its open buckets. Raises UserError where their columns differ."""
        self.path = path
        self.manifest = manifest
        self.name = manifest.name
        self.fingerprint = manifest.fingerprint
        self.parts = tuple(parts)
        """Buckets, by area."""
        declared = {"dtype", "value_range", "num_classes", "names", "divisors"}
        meanings = [
            {
                name: (column.model_dump(include=declared), len(column.shape))
                for name, column in part.columns.items()
            }
            for part in parts
        ]
        if any(meaning != meanings[0] for meaning in meanings[1:]):
            raise UserError(f"{path} holds buckets of different columns; import the data again.")
        self.columns = {
            name: merged_column([part.columns[name] for part in parts])
            for name in self.parts[0].columns
        }
        """Columns by name, with ANY for an axis whose size differs between buckets; `parts` have
        the sizes.
        """
        self.by_size = {
            bucket.size: part for bucket, part in zip(manifest.buckets, parts, strict=True)
        }
        """Buckets by size: `256x192`."""
        self.size = sum(part.size for part in parts)
        """Bytes of all shards."""
        self._ends = np.cumsum([len(part) for part in parts])

    @classmethod
    def open(cls, path: Path, verify: bool = True) -> BucketedStore:
        """Open the bucketed store in a folder, its buckets hashed together. Raises UserError as
        `Store.open` does.
        """
        manifest = read_manifest(path / BUCKETS_NAME, BucketsManifest)
        parts = [Store.open(path / bucket.folder, verify=False) for bucket in manifest.buckets]
        is_large = sum(part.size for part in parts) > WHOLE_BYTES
        if verify:
            for part in parts:
                part.verifies_blocks = is_large
                if not is_large:
                    part.verify()
        for bucket, part in zip(manifest.buckets, parts, strict=True):
            if (part.fingerprint, len(part)) != (bucket.fingerprint, bucket.rows):
                raise UserError(
                    f"{part.path} is not the store that {BUCKETS_NAME} beside it names; import "
                    "the data again."
                )
        return cls(path, manifest, parts)

    def verify(self) -> None:
        """Hash every file of every bucket. Raises UserError for the first one that was altered."""
        for part in self.parts:
            part.verify()

    def close(self) -> None:
        """Give up what the buckets hold beside their memory. Closing twice is fine."""
        for part in self.parts:
            part.close()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def bucket_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number in `parts` of each row's bucket, int64 (len(rows),)."""
        return np.searchsorted(self._ends, rows, side="right")

    def tensor(self, column: str) -> Tensor:
        """Return a copy of the whole column, (rows, *shape), which must have one shape in all
        buckets.
        """
        import torch

        return torch.cat([part.tensor(column) for part in self.parts])

    def locate(self, rows: np.ndarray) -> tuple[Store, np.ndarray]:
        """Return the bucket of rows (int64, in [0, len(store)), all of one bucket), and their
        numbers in it.
        """
        if not len(rows):
            return self.parts[0], rows
        bucket = int(self.bucket_of(rows[:1])[0])
        part = self.parts[bucket]
        part_rows = rows - (int(self._ends[bucket]) - len(part))
        assert part_rows.min() >= 0 and part_rows.max() < len(part), "rows of several buckets"
        return part, part_rows

    def gather(self, column: str, rows: np.ndarray, out: Tensor | None = None) -> Tensor:
        """Copy rows as `Store.gather` does, all of one bucket."""
        part, part_rows = self.locate(rows)
        return part.gather(column, part_rows, out)


AnyStore = Store | BucketedStore


def holds_store(path: Path) -> bool:
    """Return True if a folder holds a store, bucketed or not."""
    return os.path.lexists(path / BUCKETS_NAME) or os.path.lexists(path / MANIFEST_NAME)


def open_store(path: Path, verify: bool = True) -> AnyStore:
    """Open the store in a folder, bucketed or not. Raises UserError as `Store.open` does, whose
    `verify` this is.
    """
    # lexists: False for a path that the file system refuses (too long, unreadable folder)
    if os.path.lexists(path / BUCKETS_NAME):
        return BucketedStore.open(path, verify)
    return Store.open(path, verify)
