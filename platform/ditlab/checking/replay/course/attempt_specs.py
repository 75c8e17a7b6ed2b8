"""Specs by which a run's steps were done: a resumed run may have gone on with another engine, or for longer."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ditlab.checking.replay.course.course import Course, Execution
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore


class AttemptSpecs:
    """Specs by attempt: that of a checkpoint it has written, else of the next attempt that has one, else the run's."""

    def __init__(
        self, course: Course, checkpoints: CheckpointStore, current: Mapping[str, Any], on_cpu: bool = False
    ) -> None:
        """Read the manifests of the run's checkpoints; `current` is the spec in its folder.

        `on_cpu`: every step is replayed on the CPU, whatever it was trained on.
        """
        self._specs: dict[int, Mapping[str, Any]] = {}
        self._current, self._on_cpu = current, on_cpu
        for step in checkpoints.steps():
            with suppress(DamagedCheckpoint), checkpoints.open(step, verify=False) as reader:
                if step > course.first and (attempt := course.final(step).attempt):
                    self._specs[attempt] = reader.manifest.spec

    def __call__(self, execution: Execution) -> Mapping[str, Any]:
        """Return the spec by which a step was done, in the places that hold now: the run may have been moved."""
        later = [attempt for attempt in self._specs if attempt >= execution.attempt]
        spec = self._specs[min(later)] if execution.is_recorded and later else self._current
        spec = {**spec, **{key: self._current[key] for key in ("data", "encoders", "start") if key in self._current}}
        return {**spec, "resources": {**spec["resources"], "gpus_per_worker": 0}} if self._on_cpu else spec
