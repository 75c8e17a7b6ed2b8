"""Order of a mixture's samples: keyed draws of parts, each of which has an order and a position of
its own.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.loading.order import Order, first_run
from ditlab.data.mixture_store import Draw
from ditlab.data.permutations import keyed_words, ranks

_WORDS = 4
"""64-bit words that Philox (Salmon et al. 2011) makes of one count."""
_BITS = 53
"""Bits of a word that count: those of a float64 in [0, 1)."""
COUNTED_AT_ONCE = 2**20
"""Draws that are counted at a time where positions are replayed: 25 MB."""
KEPT_COUNTS = 64
"""Batches whose counts are kept: those that the loader is at, and the last checkpoints'."""


class PartDraws:
    """Draws of parts by their shares. Draw n has the n-th raw word of Philox, which NumPy promises
    for good.
    """

    def __init__(self, seed: int, shares: Sequence[float]):
        """Prepare the draws of parts with these shares, which sum to 1."""
        self._key = f"ditlab.mixture/{seed}"
        self._edges = np.ceil(np.cumsum(shares)[:-1] * 2.0**_BITS).astype(np.uint64)
        """First number in [0, 2**_BITS) of each part but the first."""
        self.num_parts = len(shares)

    def parts(self, first: int, count: int) -> np.ndarray:
        """Return the numbers of the parts of draws `first` to `first + count`, int64 (count,)."""
        skipped = first % _WORDS
        words = keyed_words(self._key, first // _WORDS).random_raw(skipped + count)[skipped:]
        numbers = words >> np.uint64(64 - _BITS)
        parts = np.zeros(count, np.int64)
        for edge in self._edges:
            parts += numbers >= edge
        return parts


def part_seed(seed: int, name: str) -> int:
    """Return the seed of a part's own order: another part more or less does not change it."""
    digest = hashlib.blake2b(f"ditlab.part/{seed}/{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class PartOrder:
    """A part's own order and its place among the mixture's samples."""

    order: Order
    """Its samples: one in a batch where samples draw parts, whole batches where batches do."""
    first: int
    """View index of the part's first sample."""
    first_number: int
    """Number in the joined store's `parts` of its first one."""


class MixtureOrder(Order):
    """Samples of each global batch of a mixture; draw n is a function of seed and n alone.

    A part's next sample (or batch) is that of its own order at its own position, the number of
    times that it was drawn before.
    """

    def __init__(
        self,
        parts: Sequence[PartOrder],
        draws: PartDraws,
        batch_size: int,
        draw: Draw,
        *,
        is_uniform: bool = True,
        known: Mapping[int, Sequence[int]] | None = None,
    ):
        """Mix parts. `is_uniform`: all samples have one shape; `known`: draws before some batches,
        as of `counts`.
        """
        self._parts = tuple(parts)
        self._draws = draws
        self.batch_size = batch_size
        self.draw = draw
        # no epoch: parts end theirs at different times
        self.batches_per_epoch = sys.maxsize
        self.left_out = 0
        self._slots = batch_size if draw == "sample" else 1
        """Draws of a batch."""
        self._counts = OrderedDict({0: np.zeros(len(parts), np.int64)})
        for batch, counts in (known or {}).items():
            if len(counts) == len(parts):
                self._counts[batch] = np.array(counts, np.int64)
        self._is_uniform = is_uniform
        self._lock = threading.Lock()

    def sources(self) -> Sequence[Order]:
        return [part.order for part in self._parts]

    def counts(self, batch: int) -> np.ndarray:
        """Return how often each part was drawn before a batch, int64 (parts,)."""
        with self._lock:
            start = max(known for known in self._counts if known <= batch)
            found = self._counts[start].copy()
            step = max(1, COUNTED_AT_ONCE // self._slots)
            for first in range(start, batch, step):
                drawn = self._drawn(first, min(step, batch - first))
                found += np.bincount(drawn.reshape(-1), minlength=len(found))
            self._counts[batch] = found
            while len(self._counts) > KEPT_COUNTS:
                del self._counts[next(known for known in self._counts if known)]
            return found

    def batches(self, first: int, count: int, columns: np.ndarray | None = None) -> np.ndarray:
        drawn = self._drawn(first, count)
        numbers = ranks(drawn.reshape(-1)).reshape(drawn.shape) + self.counts(first)[drawn]
        self.counts(first + count)
        if columns is None:
            columns = np.arange(self.batch_size)
        found = np.empty((count, len(columns)), np.int64)
        if self.draw == "sample":
            drawn = drawn[:, columns]
            numbers = numbers[:, columns]
        for number in np.unique(drawn).tolist():
            part = self._parts[number]
            here = drawn == number
            own = numbers[here]
            begin = int(own.min())
            num = int(own.max()) + 1 - begin
            if self.draw == "sample":
                found[here] = part.first + part.order.batches(begin, num)[own - begin, 0]
            else:
                found[here[:, 0]] = (
                    part.first + part.order.batches(begin, num, columns)[own - begin]
                )
        return found

    def shape_run(self, batch: int, most: int) -> tuple[int, int]:
        if self._is_uniform:
            return 0, most
        drawn, most = first_run(self._drawn(batch, most)[:, 0])
        part = self._parts[drawn]
        number, run = part.order.shape_run(int(self.counts(batch)[drawn]), most)
        return part.first_number + number, run

    def look_ahead(self, batch: int, stop: int) -> None:
        for part, at in zip(self._parts, self.counts(batch).tolist(), strict=True):
            part.order.look_ahead(at, at + (stop - batch) * self._slots)

    def _drawn(self, first: int, count: int) -> np.ndarray:
        """Return the part that each slot of batches draws, int64 (count, slots)."""
        return self._draws.parts(first * self._slots, count * self._slots).reshape(
            count, self._slots
        )
