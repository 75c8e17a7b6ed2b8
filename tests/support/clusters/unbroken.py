"""The run that fault tests interrupt, and its results when nothing interrupts it."""

from pathlib import Path
from typing import Any, NamedTuple

from ditlab.checkpoints.reader import CheckpointReader
from ditlab.home import Home
from ditlab.spec.experiment import Experiment, class_for
from support.trainings.workers import newest, tiny

STEPS = 60
EVERY = 30
"""Steps between evaluations."""


class Unbroken(NamedTuple):
    """Results of a run without interruption."""

    state: CheckpointReader
    """Its last checkpoint."""
    points: dict[str, list[tuple[int, float]]]
    """Metrics in MLflow, by name."""


def broken(name: str, **changes: Any) -> Experiment:
    """Two workers at ZeRO 2, a checkpoint every seven steps."""
    fixed: dict[str, Any] = {
        "training__steps": STEPS,
        "checkpoint": {"every": 7, "keep": 2},
        "resources__workers": 2,
        "engine__zero": {"stage": 2},
        "evaluation": {"every": EVERY, "samples": 4, "limit": 64},
        "sampling": {"steps": 2},
    }
    return tiny(name=name, **{**fixed, **changes})


def checkpoint_of(home: Path, run_id: str) -> CheckpointReader:
    """A run's newest checkpoint."""
    return newest(Home(home).run(run_id).checkpoints)


def breaking(
    name: str, resources: dict[str, Any], fault: dict[str, Any], **changes: Any
) -> Experiment:
    """A run of the family of `support/plugins`, whose objective has a fault."""
    spec = tiny(name=name, resources=resources, engine__zero={"stage": 2}, **changes).to_dict()
    spec["model"]["family"] = "breaking"
    spec["objective"]["fault"] = fault
    return class_for(spec).model_validate(spec)
