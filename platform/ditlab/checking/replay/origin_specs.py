"""Specs by which a run's steps were done: a resumed run may have gone on with another engine, or for longer."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ditlab.checking.replay.course import Course, Execution
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore


class AttemptSpecs:
    """Specs by attempt: that of a checkpoint it has written, else of the next attempt that has one, else the run's."""

    def __init__(self, course: Course, checkpoints: CheckpointStore, current: Mapping[str, Any]) -> None:
        """Read the manifests of the run's checkpoints; `current` is the spec in its folder."""
        self._specs: dict[int, Mapping[str, Any]] = {}
        self._current = current
        for step in checkpoints.steps():
            with suppress(DamagedCheckpoint), checkpoints.open(step, verify=False) as reader:
                if step > course.first and (attempt := course.final(step).attempt):
                    self._specs[attempt] = reader.manifest.spec

    def __call__(self, execution: Execution) -> Mapping[str, Any]:
        """Return the spec by which a step was done, in the places that hold now: the run may have been moved."""
        if not execution.is_recorded:
            return self._current
        later = [attempt for attempt in self._specs if attempt >= execution.attempt]
        if not later:
            return self._current
        return {**self._specs[min(later)], **{key: self._current[key] for key in ("data", "encoders", "start")}}
