"""Objects that commands of this folder print under `--json`."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

from ditlab.cli.output_types import Device, Numbers

DeviceHours = dict[Device, float]
"""Hours of GPUs and of cores; those of several devices are added."""


class RunRowOutput(TypedDict):
    """A run, or the runs that differ in the seed alone."""

    run_id: str
    name: str
    family: str
    status: str
    """running, lost, finished, failed, interrupted or stopped."""
    created: str
    train_loss: float | None
    """Median of the last steps."""
    step: NotRequired[int]
    """This key and the next ones: not with `--tracking`."""
    total_steps: NotRequired[int]
    message: NotRequired[str]
    """Reason of an interruption or failure."""
    main_metric: NotRequired[str]
    main_value: NotRequired[float | None]
    metrics: NotRequired[Numbers]
    samples_per_second: NotRequired[float | None]
    state: NotRequired[str]
    device_hours: NotRequired[DeviceHours]
    """Hours of devices that it has taken."""
    half_widths: NotRequired[Numbers]
    """Half of the 95 % interval by key, for several seeds."""
    seeds: NotRequired[int]
    runs: NotRequired[list[str]]
    mlflow_run_id: NotRequired[str]
    """With `--tracking`, as the next key."""
    experiment: NotRequired[str]


HomeBudgetOutput = TypedDict("HomeBudgetOutput", {"hours": float, "used": DeviceHours})


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

QueryOutput = TypedDict("QueryOutput", {"columns": list[str], "rows": list[dict[str, Any]]})

TablesOutput = TypedDict("TablesOutput", {"schema": list[str]})

SyncedOutput = TypedDict("SyncedOutput", {"run_id": str, "sent": int, "left": int})

SyncOutput = TypedDict("SyncOutput", {"synced": list[SyncedOutput], "refilled": dict[str, Any] | None})

EventOutput = TypedDict("EventOutput", {"time": str, "kind": str, "text": str})

LogOutput = TypedDict("LogOutput", {"run_id": str, "events": list[EventOutput]})

DeletedOutput = TypedDict("DeletedOutput", {
    "run_id": str, "name": str, "status": str, "bytes": int, "unsent": int, "tracking_uri": str,
    "checkpoints": str | None,
})  # fmt: skip

DeleteOutput = TypedDict("DeleteOutput", {"dry_run": bool, "bytes": int, "runs": list[DeletedOutput]})


RESULTS = {
    "runs": RunsOutput,
    "runs show": RunOutput,
    "runs log": LogOutput,
    "runs query": QueryOutput | TablesOutput,
    "runs rename": RenameOutput,
    "runs rm": DeleteOutput,
    "runs sync": SyncOutput,
}
"""Type of the object of each command."""
