"""Objects that commands of this folder print under `--json`."""

from typing import Any

from typing_extensions import TypedDict


class DeletedOutput(TypedDict):
    """A run that is deleted."""

    run_id: str
    name: str
    status: str
    bytes: int
    unsent: int
    tracking_uri: str
    checkpoints: str | None


class DeleteOutput(TypedDict):
    """`ditlab runs rm`."""

    dry_run: bool
    bytes: int
    runs: list[DeletedOutput]


class RemovedOutput(TypedDict):
    """`ditlab data rm`."""

    removed: list[str]


class SyncedOutput(TypedDict):
    """A run whose records were sent."""

    run_id: str
    sent: int
    left: int


class SyncOutput(TypedDict):
    """`ditlab runs sync`."""

    synced: list[SyncedOutput]
    refilled: dict[str, Any] | None


RESULTS = {
    "data rm": RemovedOutput,
    "runs rm": DeleteOutput,
    "runs sync": SyncOutput,
}
"""Type of the object of each command."""
