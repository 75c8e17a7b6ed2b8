"""The run that fault tests break, and what it comes to when nothing breaks it."""

from pathlib import Path
from typing import Any, NamedTuple

from ditlab.checkpoints.reader import CheckpointReader
from ditlab.home import Home
from ditlab.spec.experiment import Experiment
from support.workers import newest, tiny

STEPS = 120


class Unbroken(NamedTuple):
    """What a broken run must come to."""

    state: CheckpointReader
    points: dict[str, list[tuple[int, float]]]


def broken(name: str, **changes: Any) -> Experiment:
    """Two workers, a checkpoint every seven steps."""
    fixed = {"training__steps": STEPS, "checkpoint": {"every": 7, "keep": 2}, "resources__workers": 2}
    return tiny(name=name, **{**fixed, **changes})


def checkpoint_of(home: Path, run_id: str) -> CheckpointReader:
    """A run's newest checkpoint."""
    return newest(Home(home).run(run_id).checkpoints)
