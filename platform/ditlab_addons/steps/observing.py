"""Notes on runs and sweeps that are steps of a graph: an event, which their pages show, and a tag
in MLflow, by which they are grouped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ditlab.home import Home, RunFolder
from ditlab.runs.events import add_event
from ditlab.runs.observers import ObserverMaker, RunEnd, RunObserver
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker
from ditlab_addons.steps.ledger import STEP_VARIABLE


def observe_run(
    experiment: Any, is_resumed: bool, warn: Callable[[str], None]
) -> ObserverMaker | None:
    """Return what makes the observer of a step's run; None for a run that is none's."""
    note = os.environ.get(STEP_VARIABLE)
    if not note:
        return None
    return lambda launch: StepNote(launch.folder, launch.home, launch.tracking_uri, note, warn)


def observe_sweep(
    sweep: Any, is_resumed: bool, warn: Callable[[str], None]
) -> ObserverMaker | None:
    """Return what makes the observer of a step's sweep, as `observe_run`."""
    note = os.environ.get(STEP_VARIABLE)
    if not note:
        return None
    return lambda started, _: StepNote(
        started.folder.folder, started.home, started.prepared.tracking_uri, note, warn
    )


@dataclass
class StepNote(RunObserver):
    """Writer of the notes on one run."""

    folder: RunFolder
    home: Home
    uri: str
    note: str
    """Graph, step and the steps that it needs: `study/grown, needs base`."""
    warn: Callable[[str], None]

    def began(self) -> None:
        """Write the event."""
        with suppress(OSError):
            add_event(self.folder, "step", f"step {self.note}")

    def ended(self, end: RunEnd) -> None:
        """Set the tag with the graph and the step: `digits-study/base`."""
        tracker = RunTracker(self.folder, self.uri, self.home, warn=self.warn)
        tracker.set_tags({"ditlab.step": self.note.partition(",")[0]})
        tracker.close(CATCH_UP_TIMEOUT)
