"""Rows of a store that hold equal contents: found as an import ends, kept on one side of a split.

An import takes a digest of each row, and `duplicate_rows` finds the equal ones. A store that holds
some has the attachment `duplicates.bin`; the attachment enters its fingerprint, as it decides which
rows are held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

if TYPE_CHECKING:  # torch and pyarrow, which an importer's --help can do without
    from ditlab.data.stores.bucketed_store import AnyStore

DUPLICATES_NAME = "duplicates.bin"
"""Name of the attachment: int64 (2, repeats), little-endian, as `Duplicates` has them."""
DIGEST_BYTES = 8
"""Bytes of a row's digest: among 100 million different rows two are taken for equal with a
probability of 3e-4, which puts one row beside another.
"""
REPEATS = "rows that repeat an earlier one"
"""Name of their count, in an import's receipt."""


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Rows of a store that repeat an earlier row."""

    rows: np.ndarray
    """Rows that hold what an earlier one does, ascending, int64 (repeats,)."""
    firsts: np.ndarray
    """First row that holds the same, int64 (repeats,)."""

    def __len__(self) -> int:
        return len(self.rows)

    def attachments(self, are_kept: bool) -> dict[str, bytes]:
        """Return the attachments of their store: one file; none without duplicates, or where these
        `are_kept` on both sides of a split.
        """
        if are_kept or not len(self):
            return {}
        return {DUPLICATES_NAME: np.stack([self.rows, self.firsts]).astype("<i8").tobytes()}


NO_DUPLICATES = Duplicates(np.zeros(0, np.int64), np.zeros(0, np.int64))


def content_digests(rows: np.ndarray) -> np.ndarray:
    """Return the digest of each row's bytes, uint64 (rows,). `rows`: (rows, *shape)."""
    contents = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    digests = (blake3(content.data).digest(length=DIGEST_BYTES) for content in contents)
    return np.frombuffer(b"".join(digests), np.uint64)


def duplicate_rows(digests: np.ndarray) -> Duplicates:
    """Return the rows with equal digests, uint64 (rows,)."""
    ordered = np.sort(digests)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return NO_DUPLICATES
    del ordered
    places = np.searchsorted(repeated, digests)
    places[places == len(repeated)] = 0
    rows = np.flatnonzero(repeated[places] == digests)
    contents = places[rows]
    first = np.empty(len(repeated), np.int64)
    first[contents[::-1]] = rows[::-1]  # of several, the last one written stays
    firsts = first[contents]
    is_repeat = firsts != rows
    return Duplicates(rows[is_repeat], firsts[is_repeat])


def read_duplicates(store: AnyStore) -> Duplicates:
    """Return the duplicates of an open store; none where its import counted none, or kept them on
    both sides of a split.
    """
    rows: list[np.ndarray] = []
    firsts: list[np.ndarray] = []
    first_row = 0
    for part in store.parts:  # equal images have equal sizes
        if DUPLICATES_NAME in part.manifest.attachments:
            content = (part.path / DUPLICATES_NAME).read_bytes()
            own = np.frombuffer(content, "<i8").astype(np.int64).reshape(2, -1) + first_row
            rows.append(own[0])
            firsts.append(own[1])
        first_row += len(part)
    if not rows:
        return NO_DUPLICATES
    return Duplicates(np.concatenate(rows), np.concatenate(firsts))
