"""A run's metrics over steps, samples and seconds of training, and their values at an equal budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

CurveAxis = Literal["steps", "samples", "seconds"]
AXES: tuple[CurveAxis, ...] = ("steps", "samples", "seconds")

PAUSE_STEPS, PAUSE_SECONDS = 10, 60.0
"""An interval longer than both (this many median steps, this many seconds) is a pause, such as a sleeping machine."""
WINDOWS = 50
"""The smoothing window is one part in this many of the curve."""
_SMOOTHED_POINTS = 500


@dataclass(frozen=True)
class TrainingClock:
    """Seconds of training by step."""

    steps: np.ndarray
    """(num,) ascending, from 0."""
    seconds: np.ndarray
    """(num,) from 0; all NaN where the time is unknown."""

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Seconds at `steps`, interpolated linearly."""
        return np.interp(steps, self.steps, self.seconds)


def training_clock(
    steps: ArrayLike, times: ArrayLike, starts: Sequence[int] = (), evaluated: ArrayLike = ()
) -> TrainingClock:
    """Compute seconds of training from the `times` (milliseconds) at which metrics of `steps` (ascending) were logged.

    `starts` are the times at which the run was started and resumed, `evaluated` the steps after which it was evaluated.
    An interval between two steps counts as measured, unless it holds a resume or an evaluation, is a pause, or the
    machine's clock went back: then it counts as the median step since the last start. So does the unknown time before
    the first point.
    """
    at, stamps = np.asarray(steps, dtype=float), np.asarray(times, dtype=float) / 1000
    if len(at) < 2:
        return TrainingClock(np.array([0.0, 1.0]), np.array([np.nan, np.nan]))
    strides, intervals = np.diff(at), np.diff(stamps)
    session = np.searchsorted(np.sort(np.asarray(starts, dtype=float)) / 1000, stamps, side="right")
    marks = np.sort(np.asarray(evaluated, dtype=float))
    is_whole = np.diff(session) == 0
    is_clean = is_whole & (np.diff(np.searchsorted(marks, at, side="left")) == 0) & (intervals >= 0)
    paces = intervals / strides  # seconds a step
    by_session = {own: _median_pace(paces, is_clean, is_whole, session[1:] == own) for own in set(session.tolist())}
    usual = np.array([by_session[own] for own in session.tolist()])
    is_measured = is_clean & ((paces <= PAUSE_STEPS * usual[1:]) | (intervals <= PAUSE_SECONDS))
    spent = np.where(is_measured, intervals, usual[1:] * strides)
    return TrainingClock(np.insert(at, 0, 0.0), np.cumsum(np.concatenate([[0.0, usual[0] * at[0]], spent])))


def _median_pace(paces: np.ndarray, is_clean: np.ndarray, is_whole: np.ndarray, is_here: np.ndarray) -> float:
    """Median seconds per step of a session; of the run, or of all intervals, where the session has no clean ones."""
    for mask in (is_clean & is_here, is_clean, is_whole, np.ones_like(is_clean)):
        if mask.any():
            return max(0.0, float(np.median(paces[mask])))
    raise AssertionError("no intervals")


@dataclass(frozen=True)
class RunCurve:
    """One metric of one run, (num,) each."""

    steps: np.ndarray
    samples: np.ndarray
    seconds: np.ndarray
    """Seconds of training; NaN where the journal does not hold it."""
    values: np.ndarray

    def along(self, axis: CurveAxis) -> np.ndarray:
        return {"steps": self.steps, "samples": self.samples, "seconds": self.seconds}[axis]


def run_curve(steps: ArrayLike, values: ArrayLike, batch_size: int, clock: TrainingClock) -> RunCurve:
    """Place a metric's points on all three axes; of two points for one step the first one counts."""
    at, first = np.unique(np.asarray(steps, dtype=float), return_index=True)
    return RunCurve(at, at * batch_size, clock.at(at), np.asarray(values, dtype=float)[first])


def window_of(num: int) -> int:
    """Length of the smoothing window of a curve of `num` points."""
    return max(1, num // WINDOWS)


def smoothed(curve: RunCurve) -> RunCurve:
    """Smooth with a centred running median over a fiftieth of the points, at no more than 500 of them, ignoring NaN.

    A median, as one spike shifts every mean that contains it; centred, so that no run lags behind another.
    """
    num = len(curve.values)
    window = window_of(num)
    middles = np.unique(np.linspace(0, num - 1, min(num, _SMOOTHED_POINTS)).round().astype(int))
    medians = []
    for middle in middles:
        near = curve.values[max(0, middle - (window - 1) // 2) : middle + window // 2 + 1]
        near = near[~np.isnan(near)]
        medians.append(float(np.median(near)) if len(near) else np.nan)
    return RunCurve(curve.steps[middles], curve.samples[middles], curve.seconds[middles], np.array(medians))


@dataclass(frozen=True)
class EqualBudget:
    """A metric of several runs at the same number of steps, samples or seconds."""

    axis: CurveAxis
    amount: float
    """The largest budget at which all runs were evaluated."""
    values: tuple[float, ...]
    """One a run, in their order; NaN where its neighbouring evaluations were not finite."""


def equal_budget(curves: Sequence[RunCurve], axis: CurveAxis) -> EqualBudget | None:
    """Interpolate a metric at the largest `axis` value that all `curves` reach; None where that is unknown.

    `amount` lies within every curve that was evaluated before its first step. A curve that starts after `amount`
    gives NaN.
    """
    reaches = [curve.along(axis) for curve in curves]
    if any(not len(reach) or np.isnan(reach).any() for reach in reaches):
        return None
    amount = min(float(reach[-1]) for reach in reaches)
    values = tuple(
        float(np.interp(amount, reach, curve.values, left=np.nan)) for reach, curve in zip(reaches, curves, strict=True)
    )
    return EqualBudget(axis, amount, values) if amount > 0 else None
