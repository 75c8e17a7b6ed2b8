"""Permutations and sequences that are computed place by place, in no memory: functions of a key and
a length alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

ROUNDS = 8
"""Rounds of the network."""
SMALL = 32
"""Lengths below which a second network follows the first: eight rounds leave pairs in fewer places
correlated.
"""
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
GROUP = 256
"""Entries of a group, about: each group takes of every queue its share, in a random order."""
MOST_UNITS = 2**18
"""Most units of a shuffle, which has two numbers of each in memory: 4 MiB."""


def keyed_words(text: str, first: int = 0) -> np.random.Philox:
    """Return the source of raw 64-bit words that belongs to a text, from 4 * `first` on: Philox
    (Salmon et al. 2011), keyed by BLAKE2b of the text, whose raw words NumPy promises for good."""
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Philox(key=np.frombuffer(digest, "<u8"), counter=first)


def keyed_permutation(key: str, length: int) -> np.ndarray:
    """Return the permutation of `length` items, int64 (length,), that belongs to a text.

    Sorts raw words of `keyed_words`.
    """
    words = keyed_words(key).random_raw(length)
    # The low bits give way to the item's number: sorting such words is a tenth of the time of
    # argsort, and as no two are equal, every sorting algorithm gives the same order. 64 -
    # log2(length) random bits are left to each.
    low = np.uint64((1 << length.bit_length()) - 1)
    words &= ~low
    words |= np.arange(length, dtype=np.uint64)
    words.sort()
    words &= low
    return words.view(np.int64)


def key_of(text: str) -> int:
    """Return the 64-bit key that belongs to a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(words: np.ndarray) -> np.ndarray:
    """Return hashes of 64-bit words, uint64: SplitMix64's finaliser (Steele et al. 2014),
    Stafford's variant 13.
    """
    shifted = words >> np.uint64(30)
    x = words ^ shifted
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= np.right_shift(x, np.uint64(27), out=shifted)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= np.right_shift(x, np.uint64(31), out=shifted)
    return x


def hashed_keys(key: int, numbers: np.ndarray) -> np.ndarray:
    """Return a key of its own for each number, uint64, from one key."""
    return mix(numbers.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))


def scaled(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return numbers below `sizes` (at most 2**31, uint64) in proportion to 64-bit words."""
    found = words >> np.uint64(32)
    found = found * sizes
    found >>= np.uint64(32)
    return found


def permuted(places: np.ndarray, length: Any, key: Any) -> np.ndarray:
    """Return where permutations take the given places, int64 of their shape.

    `length` (at most 2**62) and `key` (64 bits) of each place's permutation: numbers, or arrays
    that broadcast. A Feistel network over Z_a x Z_b, the least near-square rectangle with a * b >=
    length, whose rounds add a hash of one half to the other; a place beyond the length is taken on
    until it falls inside (Black and Rogaway 2002, cycle walking).
    """
    places = np.asarray(places, np.int64)
    lengths, keys, found = (
        np.array(np.broadcast_to(np.asarray(each, dtype), places.shape)).reshape(-1)
        for each, dtype in ((length, np.int64), (key, np.uint64), (places, np.int64))
    )
    found = _walk(found, lengths, keys)
    small = np.flatnonzero(lengths < SMALL)
    found[small] = _walk(found[small], lengths[small], mix(keys[small]))
    return found.reshape(places.shape)


def _walk(places: np.ndarray, lengths: np.ndarray, keys: np.ndarray) -> np.ndarray:
    a = np.ceil(np.sqrt(lengths)).astype(np.int64)
    a += a * a < lengths  # the root of a large length is rounded
    b = -(-lengths // np.maximum(a, 1))
    found = places.copy()
    outside = np.arange(len(places))
    while len(outside):
        sizes = a[outside].astype(np.uint64), b[outside].astype(np.uint64)
        left, right = (
            half.astype(np.uint64) for half in np.divmod(found[outside], np.maximum(b[outside], 1))
        )
        for number in range(1, ROUNDS + 1):
            size = sizes[(number + 1) % 2]
            left += scaled(mix(right + (keys[outside] + np.uint64(number * _GOLDEN & _MASK))), size)
            # modulo: the difference of a smaller number wraps to a huge one
            np.minimum(left, left - size, out=left)
            left, right = right, left
        # after an even number of rounds the halves are where they began
        found[outside] = (left * sizes[1] + right).astype(np.int64)
        outside = outside[found[outside] >= lengths[outside]]
    return found


def interleaved(lengths: Sequence[int], text: str, chunk: int = 1) -> np.ndarray:
    """Return the queue of each entry of several queues that are interleaved in proportion, int64
    (total,).

    Entries come `chunk` of one queue at a time. The chunks are cut into groups of about GROUP. Of a
    queue of n, group g of G takes those from n * g // G to n * (g + 1) // G, so that queues run out
    together, and a group is in a random order. A queue's last entries that fill no chunk come at
    the end, queue by queue.
    """
    counts = np.asarray(lengths, np.int64)
    chunks = counts // chunk
    total = int(chunks.sum())
    groups = max(1, total // GROUP)
    sizes = np.diff(chunks * np.arange(groups + 1)[:, None] // groups, axis=0)
    group_sizes = sizes.sum(axis=1)
    queues = np.repeat(np.tile(np.arange(len(counts)), groups), sizes.reshape(-1))
    starts = np.repeat(np.cumsum(group_sizes) - group_sizes, group_sizes)
    name = text if chunk == 1 else f"{text}/chunks"
    keys = np.array([key_of(f"{name}/{group}") for group in range(groups)], np.uint64)
    places = permuted(
        np.arange(total) - starts, np.repeat(group_sizes, group_sizes), np.repeat(keys, group_sizes)
    )
    last = permuted(np.arange(len(counts)), len(counts), key_of(f"{text}/last"))
    return np.concatenate(
        [np.repeat(queues[starts + places], chunk), np.repeat(last, (counts % chunk)[last])]
    )


def ranks(values: np.ndarray) -> np.ndarray:
    """Return how many equal values, numbers from 0 on, come before each one, int64."""
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values)
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def in_turns(lengths: Sequence[int]) -> np.ndarray:
    """Return the queue of each entry of several queues, one of each in turn, int64 (total,); one
    that has run out is skipped."""
    queues = np.repeat(np.arange(len(lengths)), lengths)
    found: np.ndarray = queues[np.lexsort((queues, ranks(queues)))]
    return found


def blocks_of_unit(num: int) -> int:
    """Return how many of `num` blocks make a unit of a shuffle: the least power of two that gives
    MOST_UNITS or fewer."""
    blocks = 1
    while -(-num // blocks) > MOST_UNITS:
        blocks *= 2
    return blocks


class WindowedShuffle:
    """A permutation of a line of rows, cut into streams, each of which is read in windows.

    The line's units (such as blocks of a store) are laid end to end in a permuted order. The line
    of them is cut into `streams` of equally many rows (fewer than `streams` rows are left over), a
    stream into equal windows of at most `window_rows`; within each window, rows are permuted.
    """

    def __init__(self, unit_starts: np.ndarray, text: str, streams: int, window_rows: int):
        """Shuffle units that begin at ascending places, int64 (units + 1,), the last of which ends
        the last unit.
        """
        units = len(unit_starts) - 1
        order = permuted(np.arange(units), units, key_of(f"{text}/units"))
        sizes = np.diff(unit_starts)[order]
        self._ends = np.cumsum(sizes)
        self._shift = unit_starts[:-1][order] - (self._ends - sizes)
        """Distance from a place on the line to that in the units' own order, by unit."""
        self._key = key_of(f"{text}/windows")
        self.streams = streams
        self.stream_rows = int(unit_starts[-1] - unit_starts[0]) // streams
        """Rows of each stream."""
        self.windows = max(1, -(-self.stream_rows // window_rows))
        """Windows of each stream."""

    def at(self, streams: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return what the streams hold at places (int64, in [0, stream_rows)); both of one shape,
        or broadcast.
        """
        streams, places = np.broadcast_arrays(streams, places)
        windows = self.window_of(places)
        starts = self.window_start(windows)
        lengths = self.window_start(windows + 1) - starts
        keys = hashed_keys(self._key, streams * self.windows + windows)
        line = streams * self.stream_rows + starts + permuted(places - starts, lengths, keys)
        found: np.ndarray = line + self._shift[np.searchsorted(self._ends, line, side="right")]
        return found

    def window_of(self, places: np.ndarray) -> np.ndarray:
        """Return the window that each place of a stream lies in."""
        found: np.ndarray = ((places + 1) * self.windows - 1) // max(1, self.stream_rows)
        return found

    def window_start(self, windows: np.ndarray) -> np.ndarray:
        """Return the first place of each window; for the number of windows: the stream's rows."""
        found: np.ndarray = windows * self.stream_rows // self.windows
        return found
