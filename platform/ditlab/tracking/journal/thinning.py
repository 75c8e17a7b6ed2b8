"""Which points of a metric reach MLflow: all of the first ones, then fewer and fewer, and every spike. Pure.

A point is decided on when it is logged, from the points before it alone, so a run that was killed and resumed sends
the very points that an unbroken one does. Nothing is decided at an end: there may be none.
"""

from __future__ import annotations

import math

_DENSE = 10
"""A tenth of the budget goes before any point is held back; as many non-finite ones go, wherever they come."""
_WINDOW = 16
"""Points of a window in the first octave; each octave doubles it, so octaves send alike."""
_WIDENING = 0.5
"""How much of a window's range so far a new extreme must add. Any new extreme would be too little to ask: a learning
rate that falls is one at every step. With a budget of 10,000, a straight line sends
9,800 of 10^6 points, half a cosine 10,200, noise 3,700 (Gaussian) to 5,000 (Cauchy), a constant 1,600; each doubling
beyond adds at most a tenth."""


class Thinning:
    """One metric's points in the order they are logged. About `budget` of 10^6 points go; none is held for None."""

    __slots__ = ("_dense", "_high", "_low", "_num", "_num_non_finite", "_until")

    def __init__(self, budget: int | None) -> None:
        self._dense = math.inf if budget is None else max(1, budget // _DENSE)
        self._num = self._num_non_finite = 0
        self._until = 0
        """Where the window ends, in points."""
        self._low = self._high = 0.0
        """Range of what has been sent of the window."""

    def sends(self, value: float) -> bool:
        """Whether this next point goes to MLflow: the first of its window, or one that widens its range by half."""
        num = self._num
        self._num = num + 1
        if num < self._dense:
            return True
        if not math.isfinite(value):
            self._num_non_finite += 1
            return self._num_non_finite <= self._dense
        if num >= self._until:
            octave = (num // int(self._dense)).bit_length() - 1
            self._until = num + (_WINDOW << octave)
            self._low = self._high = value
            return True
        margin = _WIDENING * (self._high - self._low)
        if value > self._high + margin:
            self._high = value
        elif value < self._low - margin:
            self._low = value
        else:
            return False
        return True
