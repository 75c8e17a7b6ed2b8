"""Callbacks through which a launcher follows a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ditlab.training.reporting import TrainingProgress


@dataclass(frozen=True)
class RunCallbacks:
    """Functions called in the launching process, from its own thread."""

    on_progress: Callable[[TrainingProgress], None]
    """Receives progress for display, a few times a second."""
    warn: Callable[[str], None]
    """Receives warnings, one sentence each."""
    on_failure: Callable[[Mapping[str, str]], None]
    """Receives the tags of each failed attempt, before the run goes on or ends."""
