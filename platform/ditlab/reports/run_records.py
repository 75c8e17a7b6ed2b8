"""Content of a run's page, collected elsewhere: reports know no journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ditlab.reports.formatting import Cell
from ditlab.reports.parts import NamedPicture, Slide

TRAIN, HELD_OUT = "train/", "eval/"
"""Prefixes of the metrics of steps and of evaluations."""
TRAIN_LOSS = "train/loss"
SPEED = "train/samples_per_second"
DATA_WAIT = "train/data_wait"


class StepSeries(Protocol):
    """One metric over the steps, (num,) each."""

    @property
    def steps(self) -> np.ndarray: ...

    @property
    def values(self) -> np.ndarray: ...

    @property
    def times(self) -> np.ndarray:
        """Milliseconds since 1970."""


@dataclass(frozen=True)
class RunAttempt:
    """One start of a run, up to its end or to the next start."""

    begin: int
    end: int
    """Milliseconds since 1970."""
    status: str
    """`finished`, `failed`, `interrupted`, `stopped`, `running`, or `killed` where it ended without a record."""


@dataclass(frozen=True)
class ReportedEvent:
    """One event of a run."""

    time: int
    """Milliseconds since 1970."""
    kind: str
    text: str


@dataclass(frozen=True)
class DataFacts:
    """Data that a run reads."""

    name: str
    fingerprint: str
    source: str
    counts: Mapping[str, int]


@dataclass(frozen=True)
class SpecChanges:
    """Fields of a run's spec beside those of another spec."""

    against: str
    """`the defaults`, `the sweep's base`, ..."""
    columns: tuple[str, str, str]
    rows: Sequence[tuple[str, Cell, Cell]]
    """Path, the run's value, the other value."""


@dataclass(frozen=True)
class SampleSeries:
    """Samples of one kind over the steps."""

    key: str
    slides: Sequence[Slide]
    caption: str = ""


@dataclass(frozen=True)
class RunContent:
    """All that a run's page shows. What is missing is empty, and `notes` says why."""

    run_id: str
    name: str
    family: str
    status: str
    message: str
    """Reason of a failure or interruption."""
    step: int
    total_steps: int
    is_live: bool
    """True if a process trains it now."""
    components: Sequence[str] = ()
    """Loss components, the heaviest first."""
    metrics: Mapping[str, StepSeries] = field(default_factory=dict)
    samples: Sequence[SampleSeries] = ()
    figures: Sequence[NamedPicture] = ()
    attempts: Sequence[RunAttempt] = ()
    events: Sequence[ReportedEvent] = ()
    spec: str = ""
    """The resolved YAML."""
    changes: Sequence[SpecChanges] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Parameters by component, with `total` and `trainable`."""
    data: DataFacts | None = None
    batch_size: int = 0
    checkpoints: Sequence[int] = ()
    """Steps of the checkpoints in the run's folder."""
    commands: Sequence[tuple[str, str]] = ()
    """Purpose of a command, and the command."""
    tags: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""
    notes: Sequence[str] = ()
    """Sentences on what is missing or damaged."""
