"""Records that a sweep's report is made of: its trials, their curves and its axes. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["finished", "stopped", "failed", "interrupted", "running", "waiting"]
"""Status of a trial: the scheduler `stopped` it; a person or the machine `interrupted` it."""

ENDED: tuple[Status, ...] = ("finished", "stopped", "failed")
"""Statuses of trials that are not run again."""


@dataclass(frozen=True)
class MetricCurve:
    """A metric over steps."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    number: int
    run_id: str
    values: Mapping[str, Any]
    """Value by axis path; an axis whose condition does not hold is absent."""
    status: str = "waiting"
    """A `Status`."""
    step: int = 0
    total_steps: int = 0
    seconds: float = 0.0
    """Training time."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Last value of each metric."""
    curves: Mapping[str, MetricCurve] = field(default_factory=dict)
    """Curves of the sweep's metrics and of `train/loss`."""
    note: str = ""
    """A failure's class and message; in population-based training, the trial's takeovers."""


@dataclass(frozen=True)
class AxisInfo:
    """One axis of the search space."""

    path: str
    scale: Literal["linear", "log", "category"]


@dataclass(frozen=True)
class SweepSummary:
    """State of a sweep, finished or not: its trials and settings."""

    sweep_id: str
    name: str
    metrics: tuple[str, ...]
    modes: tuple[Literal["min", "max"], ...]
    """One mode for each of `metrics`."""
    axes: Sequence[AxisInfo]
    trials: Sequence[Trial]
    search: str
    scheduler: str
    seconds: float
    total_trials: int
    base: str

    def __post_init__(self) -> None:
        assert self.metrics and len(self.metrics) == len(self.modes), "a mode for each metric, and at least one"
