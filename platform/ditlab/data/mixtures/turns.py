"""Sequence that takes from several queues in turns, computed in no memory."""

import numpy as np


class Turns:
    """Entries of several queues, one of each in turns; a queue that has run out is passed."""

    def __init__(self, lengths: np.ndarray):
        """Take from queues of these lengths, int64 (queues,)."""
        self._lengths = lengths
        levels = np.append(0, np.unique(lengths[lengths > 0]))
        self._waiting = [np.flatnonzero(lengths > level) for level in levels[:-1]]
        """Queues that have entries left, between any two lengths."""
        self._taken = levels[:-1]
        """Entries of each of them that were taken before."""
        sizes = np.diff(levels) * [len(waiting) for waiting in self._waiting]
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes

    def locate(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (queue, number in the queue) of the entries at places (int64, in [0, total)), int64 each."""
        queues, numbers = np.empty_like(places), np.empty_like(places)
        stage_of_place = np.searchsorted(self._ends, places, side="right")
        for stage, waiting in enumerate(self._waiting):
            here = stage_of_place == stage
            rounds, turn = np.divmod(places[here] - self._starts[stage], len(waiting))
            queues[here], numbers[here] = waiting[turn], self._taken[stage] + rounds
        return queues, numbers

    def num_before(self, place: int) -> np.ndarray:
        """Return how many entries each queue has before a place, int64 (queues,)."""
        if not len(self._ends) or place >= self._ends[-1]:
            return self._lengths
        queues, numbers = self.locate(np.array([place]))
        had_its_turn = np.arange(len(self._lengths)) < queues[0]
        return np.minimum(self._lengths, numbers[0] + had_its_turn)
