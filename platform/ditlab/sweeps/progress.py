"""Progress of a running sweep, for display."""

from collections.abc import Sequence
from dataclasses import dataclass

from ditlab.reports.sweeps.records import ENDED, Trial
from ditlab.spec.sweep.spec import Sweep


@dataclass(frozen=True)
class SweepProgress:
    """State of a sweep's trials at one moment."""

    sweep_id: str
    sweep: Sweep
    trials: Sequence[Trial]
    """Every planned trial, by number."""
    leader: int | None
    """Number of the best finished trial, by the first metric."""
    num_trials: int
    """Number of trials of the whole sweep."""
    ended_before: frozenset[int]
    """Numbers of trials that ended in an earlier session."""

    @property
    def counts(self) -> str:
        """The trials counted by status: `2 running, 3 finished of 8`."""
        counts = {status: sum(trial.status == status for trial in self.trials) for status in ("running", *ENDED)}
        text = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        return f"{text or 'starting'} of {self.num_trials}"
