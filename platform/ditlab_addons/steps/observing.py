"""Notes on runs and sweeps that are steps of a graph: an event, which their pages show, and a tag
in MLflow, by which they are grouped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ditlab.home import Home, RunFolder
from ditlab.runs.events import add_event
from ditlab.runs.observers import ObserverMaker, RunEnd, RunObserver
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker
from ditlab_addons.steps.ledger import STEP_VARIABLE

TAG = "ditlab.step"
"""Tag with the graph and the step of a run: `digits-study/base`."""


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


class StepNote(RunObserver):
    """Writer of the notes on one run."""

    def __init__(
        self, folder: RunFolder, home: Home, uri: str, note: str, warn: Callable[[str], None]
    ) -> None:
        """`note`: graph, step and the steps that it needs: `study/grown, needs base`."""
        self._folder = folder
        self._home = home
        self._uri = uri
        self._note = note
        self._warn = warn

    def began(self) -> None:
        """Write the event."""
        with suppress(OSError):
            add_event(self._folder, "step", f"step {self._note}")

    def ended(self, end: RunEnd) -> None:
        """Set the tag."""
        tracker = RunTracker(self._folder, self._uri, self._home, warn=self._warn)
        tracker.set_tags({TAG: self._note.partition(",")[0]})
        tracker.close(CATCH_UP_TIMEOUT)
