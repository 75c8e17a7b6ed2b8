"""A metric over steps, samples and seconds of training, and its value where several runs have spent the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Axis = Literal["steps", "samples", "seconds"]
AXES: tuple[Axis, ...] = ("steps", "samples", "seconds")

PAUSE_STEPS, PAUSE_SECONDS = 10, 60.0
"""An interval is a pause (a machine that slept) where it is longer than both: so many median steps, so many seconds."""
WINDOWS = 50
"""A smoothed curve's window is this part of the curve."""
_SMOOTHED_POINTS = 500


@dataclass(frozen=True)
class Clock:
    """How many seconds of training a step took to reach."""

    steps: np.ndarray
    """(num,) ascending, from 0."""
    seconds: np.ndarray
    """(num,) from 0; NaN throughout where nothing tells."""

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Seconds at `steps`, linear in between."""
        return np.interp(steps, self.steps, self.seconds)


def training_clock(
    steps: Sequence[int], times: Sequence[int], starts: Sequence[int] = (), evaluated: Sequence[int] = ()
) -> Clock:
    """The clock of a run whose training metrics were logged after `steps` (ascending) at `times` (milliseconds).

    `starts` are the times at which the run began and was resumed, `evaluated` the steps after which it was evaluated.
    What lies between two steps counts as it was measured, unless a resume or an evaluation lies between them, or it is
    a pause, or the machine's clock went back: then it counts as the median step since the last start. So does the time
    before the first point, which nothing tells.
    """
    at, stamps = np.asarray(steps, dtype=float), np.asarray(times, dtype=float) / 1000
    if len(at) < 2:
        return Clock(np.array([0.0, 1.0]), np.array([np.nan, np.nan]))
    strides, intervals = np.diff(at), np.diff(stamps)
    session = np.searchsorted(np.sort(np.asarray(starts, dtype=float)) / 1000, stamps, side="right")
    marks = np.sort(np.asarray(evaluated, dtype=float))
    is_whole = np.diff(session) == 0
    is_clean = is_whole & (np.diff(np.searchsorted(marks, at, side="left")) == 0) & (intervals >= 0)
    paces = intervals / strides  # seconds a step
    by_session = {own: _usual(paces, is_clean, is_whole, session[1:] == own) for own in set(session.tolist())}
    usual = np.array([by_session[own] for own in session.tolist()])
    is_measured = is_clean & ((paces <= PAUSE_STEPS * usual[1:]) | (intervals <= PAUSE_SECONDS))
    spent = np.where(is_measured, intervals, usual[1:] * strides)
    return Clock(np.insert(at, 0, 0.0), np.cumsum(np.concatenate([[0.0, usual[0] * at[0]], spent])))


def _usual(paces: np.ndarray, is_clean: np.ndarray, is_whole: np.ndarray, is_here: np.ndarray) -> float:
    """The median pace of a session; of the run where the session has none, of what there is where the run has none."""
    for mask in (is_clean & is_here, is_clean, is_whole, np.ones_like(is_clean)):
        if mask.any():
            return max(0.0, float(np.median(paces[mask])))
    raise AssertionError("no intervals")


@dataclass(frozen=True)
class Track:
    """One metric of one run, (num,) each."""

    steps: np.ndarray
    samples: np.ndarray
    seconds: np.ndarray
    """Of training; NaN where the journal does not tell."""
    values: np.ndarray

    def along(self, axis: Axis) -> np.ndarray:
        return {"steps": self.steps, "samples": self.samples, "seconds": self.seconds}[axis]


def track(steps: Sequence[int], values: Sequence[float], batch_size: int, clock: Clock) -> Track:
    """A metric's points on all three axes; of two points for one step the first one stays."""
    at, first = np.unique(np.asarray(steps, dtype=float), return_index=True)
    return Track(at, at * batch_size, clock.at(at), np.asarray(values, dtype=float)[first])


def window_of(num: int) -> int:
    """Points in the window that a curve of `num` points is smoothed with."""
    return max(1, num // WINDOWS)


def smoothed(track: Track) -> Track:
    """Its running median over a fiftieth of its points, centred, at no more than 500 of them; NaN is passed over.

    A median, as a single spike moves every mean that it enters; centred, so that no run lags behind another.
    """
    num = len(track.values)
    window = window_of(num)
    middles = np.unique(np.linspace(0, num - 1, min(num, _SMOOTHED_POINTS)).round().astype(int))
    medians = []
    for middle in middles:
        near = track.values[max(0, middle - (window - 1) // 2) : middle + window // 2 + 1]
        near = near[~np.isnan(near)]
        medians.append(float(np.median(near)) if len(near) else np.nan)
    return Track(track.steps[middles], track.samples[middles], track.seconds[middles], np.array(medians))


@dataclass(frozen=True)
class EqualBudget:
    """What a metric was when every run had spent the same."""

    axis: Axis
    amount: float
    """The most that all runs were evaluated at."""
    values: tuple[float, ...]
    """Of each run, in their order; NaN where its evaluations beside it were no number."""


def equal_budget(tracks: Sequence[Track], axis: Axis) -> EqualBudget | None:
    """The metric at the largest `axis` that all `tracks` reach, linear between evaluations; None where none is known.

    `amount` lies within every track that was evaluated before its first step. A track that begins later than `amount`
    gives NaN.
    """
    reaches = [track.along(axis) for track in tracks]
    if any(not len(reach) or np.isnan(reach).any() for reach in reaches):
        return None
    amount = min(float(reach[-1]) for reach in reaches)
    values = tuple(
        float(np.interp(amount, reach, track.values, left=np.nan)) for reach, track in zip(reaches, tracks, strict=True)
    )
    return EqualBudget(axis, amount, values) if amount > 0 else None
