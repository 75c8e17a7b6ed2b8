"""Objects that commands of this folder print under `--json`."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

from ditlab.cli.output_types import Device


class RunRowOutput(TypedDict):
    """A run."""

    run_id: str
    name: str
    family: str
    status: str
    """running, lost, finished, failed, interrupted or stopped."""
    created: str
    step: int
    total_steps: int
    message: str
    """Reason of an interruption or failure."""
    train_loss: float | None
    """Median of the last steps."""
    main_metric: str | None
    main_value: float | None
    samples_per_second: float | None
    """Median of the steps."""
    state: str
    """Sentence on the process of a run that has no end."""


HomeBudgetOutput = TypedDict("HomeBudgetOutput", {"hours": float, "used": dict[Device, float]})


class RunsOutput(TypedDict):
    """`ditlab runs`."""

    runs: list[RunRowOutput]
    budget: NotRequired[HomeBudgetOutput]
    """Where DITLAB_BUDGET is set."""


class RunOutput(TypedDict):
    """`ditlab runs show`."""

    run_id: str
    name: str
    family: str
    status: str
    message: str
    step: int
    total_steps: int
    created: str
    updated: str
    spec_hash: str
    parent: str
    trial: int
    plugins: dict[str, str]
    is_locked: bool
    """True while a process trains it."""
    running: dict[str, str] | None
    folder: str
    tracking_uri: str
    unsent: int | None
    spec: dict[str, str]
    metrics: dict[str, dict[str, float | None]]
    """Step and value of each metric's last point."""
    checkpoints: dict[str, Any]
    bytes: dict[str, int]
    trials: dict[str, int]
    notes: list[str]
    time: dict[str, Any] | None
    start: str | None
    proof: str | None
    lineage: dict[str, Any] | None


RenameOutput = TypedDict("RenameOutput", {"run_id": str, "name": str, "before": str})


EventOutput = TypedDict("EventOutput", {"time": str, "kind": str, "text": str})

LogOutput = TypedDict("LogOutput", {"run_id": str, "events": list[EventOutput]})


RESULTS = {
    "runs": RunsOutput,
    "runs show": RunOutput,
    "runs log": LogOutput,
    "runs rename": RenameOutput,
}
"""Type of the object of each command."""
