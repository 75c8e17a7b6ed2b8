"""Sequence that takes from several queues in proportion to their lengths, computed in no memory."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ditlab.data.loading.computed_permutation import key_of, permuted

GROUP = 256
"""Entries of a group, about: each group takes of every queue its share, in a random order."""


class Interleaving:
    """Entries of several queues, each queue's in its own order; a function of lengths and text alone.

    The sequence is cut into groups of about GROUP entries. Of a queue of n, group g of G takes those from n * g // G to
    n * (g + 1) // G, so that queues run out together, and what was taken before a group is arithmetic.
    """

    def __init__(self, lengths: Sequence[int], text: str):
        self._lengths = np.asarray(lengths, np.int64)
        self._text = text
        self.total = int(self._lengths.sum())
        """Entries of all queues."""
        # larger groups in a sequence of over 3e10, whose products would leave 64 bits
        self._groups = max(1, min(self.total // GROUP, 2**62 // max(1, self.total)))
        self._group = lru_cache(maxsize=8)(self._make_group)

    def locate(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (queue, number in the queue) of the entries at places (int64, in [0, total)), int64 each."""
        groups = self._groups_of(places)
        queues, numbers = np.empty_like(places), np.empty_like(places)
        for group in np.unique(groups).tolist():
            here = groups == group
            start, own_queues, own_numbers = self._group(group)
            inside = places[here] - start
            queues[here], numbers[here] = own_queues[inside], own_numbers[inside]
        return queues, numbers

    def num_before(self, place: int) -> np.ndarray:
        """Return how many entries each queue has before a place (up to `total`), int64 (queues,)."""
        if place == self.total:
            return self._lengths
        group = int(self._groups_of(np.array([place]))[0])
        start, queues, _ = self._group(group)
        return self._taken(group) + np.bincount(queues[: place - start], minlength=len(self._lengths))

    def _taken(self, group: int) -> np.ndarray:
        """Return the entries of each queue before a group."""
        return self._lengths * group // self._groups

    def _groups_of(self, places: np.ndarray) -> np.ndarray:
        groups = places * self._groups // self.total
        # parts are rounded down, so that a place may lie up to a few groups on
        while True:
            starts = (self._lengths[:, None] * (groups + 1) // self._groups).sum(axis=0)
            later = (starts <= places) & (groups + 1 < self._groups)
            if not later.any():
                return groups
            groups = groups + later

    def _make_group(self, group: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Return (first place, queue of each entry, its number in the queue) of a group."""
        before = self._taken(group)
        counts = self._taken(group + 1) - before
        queues = np.repeat(np.arange(len(counts)), counts)
        queues = queues[permuted(np.arange(len(queues)), len(queues), key_of(f"{self._text}/{group}"))]
        order = np.argsort(queues, kind="stable")
        numbers = np.empty_like(queues)
        numbers[order] = np.arange(len(queues)) - np.repeat(np.cumsum(counts) - counts, counts)
        return int(before.sum()), queues, numbers + before[queues]
