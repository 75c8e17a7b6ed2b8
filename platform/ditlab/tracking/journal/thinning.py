"""Selection of the points of a metric for MLflow: all of the first ones, then fewer and fewer, and every spike. Pure.

The decision on a point depends on the points before it alone, so a run that was killed and resumed sends the same
points as an unbroken one. Nothing is decided at the end of a run: there may be none.
"""

from __future__ import annotations

import math

import numpy as np

_DENSE = 10
"""A tenth of the budget goes before any point is held back; as many non-finite ones go, wherever they come."""
_WINDOW = 16
"""Points of a window in the first octave; each octave doubles it, so octaves send alike."""
_WIDENING = 0.5
"""Share of a window's range so far that a new extreme must add. Any new extreme would be too weak a condition: a
learning rate that falls is one at every step. With a budget of 10,000, a straight line sends
9,800 of 10^6 points, half a cosine 10,200, noise 3,700 (Gaussian) to 5,000 (Cauchy), a constant 1,600; each doubling
beyond adds at most a tenth."""


class Thinning:
    """One metric's thinning: selects about `budget` of 10^6 points, or every point where `budget` is None."""

    __slots__ = ("_dense", "_high", "_low", "_num", "_num_non_finite", "_until")

    def __init__(self, budget: int | None) -> None:
        self._dense = math.inf if budget is None else max(1, budget // _DENSE)
        self._num = self._num_non_finite = 0
        self._until = 0
        """End of the window, in points."""
        self._low = self._high = 0.0
        """Range of the points of the window that were selected."""

    def selects(self, value: float) -> bool:
        """Return True if the next point goes to MLflow: it opens a window, or widens the window's range by half."""
        num = self._num
        self._num = num + 1
        if num < self._dense:
            return True
        if not math.isfinite(value):
            self._num_non_finite += 1
            return self._num_non_finite <= self._dense
        if num >= self._until:
            self._open_window(num, value)
            return True
        return self._widens_range(value)

    def advance(self, values: np.ndarray) -> None:
        """Pass over points that were logged before, (N,): the state is as if `selects` had been asked for each."""
        num_dense = min(len(values), int(min(max(0, self._dense - self._num), len(values))))
        self._num += num_dense
        values = values[num_dense:]
        if not len(values):
            return
        begin, is_finite = self._num, np.isfinite(values)
        self._num += len(values)
        self._num_non_finite += int((~is_finite).sum())
        finite = np.flatnonzero(is_finite) + begin
        first = 0  # the current window's point from which on `values` goes on, among the finite ones
        while (opening := int(np.searchsorted(finite, self._until))) < len(finite):
            self._open_window(int(finite[opening]), float(values[finite[opening] - begin]))
            first = opening + 1
        for value in values[finite[first:] - begin].tolist():
            self._widens_range(value)

    def _open_window(self, num: int, value: float) -> None:
        octave = (num // int(self._dense)).bit_length() - 1
        self._until = num + (_WINDOW << octave)
        self._low = self._high = value

    def _widens_range(self, value: float) -> bool:
        margin = _WIDENING * (self._high - self._low)
        if value > self._high + margin:
            self._high = value
        elif value < self._low - margin:
            self._low = value
        else:
            return False
        return True
