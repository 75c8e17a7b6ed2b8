"""Objects that commands of this folder print under `--json`."""

from typing import Any

from typing_extensions import TypedDict


class WeightsOutput(TypedDict):
    format: str
    family: str
    taken: str
    model: dict[str, Any]
    num_file: int
    num_network: int
    fits: bool
    num_fitting: int
    problems: list[str]
    kept: list[str]
    sha256: str
    files: dict[str, str]
    revision: str | None
    notes: list[str]
    command: list[str]  # fmt: skip


RESULTS = {
    "weights inspect": WeightsOutput,
}
"""Type of the object of each command."""
