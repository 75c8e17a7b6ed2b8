"""Order of a mixture's samples: keyed draws of parts, each of which has an order and a position of its own."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.loading.order import Order, UpcomingRows, first_run
from ditlab.data.mixture_store import Draw
from ditlab.data.permutations import ranks

_WORDS = 4
"""64-bit words that Philox (Salmon et al. 2011) makes of one count."""
_BITS = 53
"""Bits of a word that count: those of a float64 in [0, 1)."""
COUNTED_AT_ONCE = 2**20
"""Draws that are counted at a time where positions are replayed: 25 MB."""
KEPT_COUNTS = 64
"""Batches whose counts are kept: those that the loader is at, and the last checkpoints'."""


class PartDraws:
    """Draws of parts by their shares. Draw n has the n-th raw word of Philox, which NumPy promises for good."""

    def __init__(self, seed: int, shares: Sequence[float]):
        """Prepare the draws of parts with these shares, which sum to 1."""
        digest = hashlib.blake2b(f"ditlab.mixture/{seed}".encode(), digest_size=16).digest()
        self._key = np.frombuffer(digest, "<u8")
        self._edges = np.ceil(np.cumsum(shares)[:-1] * 2.0**_BITS).astype(np.uint64)
        """First number in [0, 2**_BITS) of each part but the first."""
        self.num_parts = len(shares)

    def parts(self, first: int, count: int) -> np.ndarray:
        """Return the numbers of the parts of draws `first` to `first + count`, int64 (count,)."""
        skipped = first % _WORDS
        words = np.random.Philox(key=self._key, counter=first // _WORDS).random_raw(skipped + count)[skipped:]
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
    """Its samples: `lanes` of them in a batch where samples draw parts, whole batches where batches do."""
    first: int
    """View index of the part's first sample."""
    first_number: int
    """Number in the joined store's `parts` of its first one."""


class MixtureOrder(Order):
    """Samples of each global batch of a mixture; draw n is a function of seed and n alone.

    A part's next sample (or batch) is that of its own order at its own position, the number of times that it was drawn
    before. Where samples draw, sample j of a batch takes from lane j * L // batch_size of its part's L lanes, each with
    a position of its own, and a worker reads the lanes of its samples alone.
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
        """Mix parts. `is_uniform`: all samples have one shape; `known`: draws before some batches, as of `counts`."""
        self._parts = tuple(parts)
        self._draws = draws
        self.batch_size = batch_size
        self.draw = draw
        self.batches_per_epoch, self.left_out = sys.maxsize, 0  # no epoch: parts end theirs at different times
        lanes = [part.order.batch_size if draw == "sample" else 1 for part in parts]
        self._streams = [(part, lane) for part, num in enumerate(lanes) for lane in range(num)]
        """Part and lane of each sequence of samples that has a position of its own."""
        firsts = np.cumsum(lanes) - lanes
        slots = np.arange(batch_size if draw == "sample" else 1)
        self._stream_of = firsts[:, None] + slots * np.array(lanes)[:, None] // len(slots)
        """Stream that a slot takes from, by the part that it draws, int64 (parts, slots)."""
        self._counts = OrderedDict({0: np.zeros(len(self._streams), np.int64)})
        for batch, counts in (known or {}).items():
            if len(counts) == len(self._streams):
                self._counts[batch] = np.array(counts, np.int64)
        self._is_uniform = is_uniform
        self._lock = threading.Lock()

    def counts(self, batch: int) -> np.ndarray:
        """Return how often each part's lanes were drawn before a batch, int64 (all lanes of all parts,)."""
        with self._lock:
            start = max(known for known in self._counts if known <= batch)
            found = self._counts[start].copy()
            slots = self._stream_of.shape[1]
            for first in range(start, batch, step := max(1, COUNTED_AT_ONCE // slots)):
                found += np.bincount(self._drawn(first, min(step, batch - first)).reshape(-1), minlength=len(found))
            self._counts[batch] = found
            while len(self._counts) > KEPT_COUNTS:
                del self._counts[next(known for known in self._counts if known)]
            return found

    def batches(self, first: int, count: int, columns: np.ndarray | None = None) -> np.ndarray:
        streams = self._drawn(first, count)
        numbers = ranks(streams.reshape(-1)).reshape(streams.shape) + self.counts(first)[streams]
        self.counts(first + count)
        columns = np.arange(self.batch_size) if columns is None else columns
        found = np.empty((count, len(columns)), np.int64)
        if self.draw == "sample":
            streams = streams[:, columns]
            numbers = numbers[:, columns]
        for stream in np.unique(streams).tolist():
            number, lane = self._streams[stream]
            part = self._parts[number]
            here = streams == stream
            own = numbers[here]
            begin = int(own.min())
            stop = int(own.max()) + 1
            taken = part.order.batches(
                begin, stop - begin, np.array([lane]) if self.draw == "sample" else columns
            )  # fmt: skip
            if self.draw == "sample":
                found[here] = part.first + taken[own - begin, 0]
            else:
                found[here[:, 0]] = part.first + taken[own - begin]
        return found

    def shape_run(self, batch: int, most: int) -> tuple[int, int]:
        if self._is_uniform:
            return 0, most
        drawn, most = first_run(self._drawn(batch, most)[:, 0])
        part = self._parts[drawn]
        number, run = part.order.shape_run(int(self.counts(batch)[drawn]), most)
        return part.first_number + number, run

    def look_ahead(self, batch: int, stop: int) -> None:
        counts = self.counts(batch)
        slots = self._stream_of.shape[1]
        for stream, (part, lane) in enumerate(self._streams):
            if lane == 0:
                at = int(counts[stream])
                self._parts[part].order.look_ahead(at, at + (stop - batch) * slots)

    def upcoming(self, batch: int, columns: np.ndarray) -> UpcomingRows:
        """Return the rows that these columns of coming batches take of each part, whichever is drawn."""
        counts = self.counts(batch)
        ranges = [np.zeros((0, 2), np.int64)]
        until = sys.maxsize
        wanted = set(np.unique(self._stream_of[:, columns if self.draw == "sample" else 0]).tolist())
        for stream in sorted(wanted):
            part = self._parts[self._streams[stream][0]]
            lane = self._streams[stream][1]
            at = int(counts[stream])
            own = part.order.upcoming(at, np.array([lane]) if self.draw == "sample" else columns)
            most = self.batch_size // part.order.batch_size  # samples of the lane that a batch may take
            ranges.append(own.ranges + part.first)
            until = min(until, batch + max(1, (own.until - at) // most))
        return UpcomingRows(np.concatenate(ranges), until)

    def part_columns(self, columns: np.ndarray) -> list[tuple[Order, np.ndarray]]:
        """Return each part's own order, and the places in its batches that these columns of a batch read."""
        if self.draw == "batch":
            return [(part.order, columns) for part in self._parts]
        wanted = [self._streams[stream] for stream in np.unique(self._stream_of[:, columns]).tolist()]
        lanes = [[lane for at, lane in wanted if at == number] for number in range(len(self._parts))]
        return [(part.order, np.array(own, np.int64)) for part, own in zip(self._parts, lanes, strict=True)]

    def _drawn(self, first: int, count: int) -> np.ndarray:
        """Return the stream that each slot of batches takes from, int64 (count, slots)."""
        slots = self._stream_of.shape[1]
        parts = self._draws.parts(first * slots, count * slots).reshape(count, slots)
        found: np.ndarray = self._stream_of[parts, np.arange(slots)]
        return found
