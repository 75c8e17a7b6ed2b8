"""Objects that commands of this folder print under `--json`."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from ditlab.cli.train.results import TrainedOutput


class ProofOutput(TypedDict):
    """`ditlab prove`."""

    holds: bool
    verdict: str
    spec: str
    engine: str
    seconds: float
    made_by: dict[str, Any]
    untrained: list[str]
    """Sentences on parameters that do not train."""
    unchecked: list[str]
    """Clauses on properties that were not checked, with the reason."""
    untold: list[str]
    """Sentences on faults that rounding would hide."""
    comparisons: list[dict[str, Any]]


class NotProvedOutput(TypedDict):
    status: Literal["not proved"]
    proof: ProofOutput


class DepartureOutput(TypedDict):
    step: int
    quantity: str
    where: list[str]


class FileComparisonOutput(TypedDict):
    """`ditlab prove --against`."""

    holds: bool
    verdict: str
    spec: str
    file: str
    steps: int
    changed: list[str]
    departures: list[DepartureOutput]


class EjectOutput(TypedDict):
    """`ditlab eject`."""

    file: str
    lines: int
    left_out: list[str]
    """Sentences on settings without which the file trains."""


class ReplayOutput(TypedDict):
    """`ditlab replay`; with `--check` also whether it holds (exit code 1 where not)."""

    run_id: str
    name: str
    origin: str
    remarks: list[str]
    steps: list[dict[str, Any]]
    holds: NotRequired[bool]
    bound: NotRequired[float]
    bound_reason: NotRequired[str]
    comparisons: NotRequired[list[dict[str, Any]]]
    unchecked: NotRequired[list[Any]]


class VerifiedPartOutput(TypedDict):
    part: str
    verdict: Literal["holds", "off", "not checked"]
    sentence: str


class VerifyOutput(TypedDict):
    run_id: str
    name: str
    holds: bool
    seconds: float
    parts: list[VerifiedPartOutput]
    conclusion: str


RESULTS = {
    "train": NotProvedOutput,
    "prove": ProofOutput | FileComparisonOutput,
    "eject": EjectOutput,
    "runs adopt": TrainedOutput,
    "replay": ReplayOutput,
    "verify": VerifyOutput,
}
"""Type of the object of each command."""
