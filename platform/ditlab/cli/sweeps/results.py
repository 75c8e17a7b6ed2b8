"""Objects that commands of this folder print under `--json`."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from ditlab.cli.output_types import Changes, Device, IntervalOutput, Numbers


class TrialOutput(TypedDict):
    """One run of a sweep."""

    number: int
    run_id: str
    values: dict[str, Any]
    """Value by axis."""
    status: str
    step: int
    metrics: Numbers
    """The sweep's metrics; null where the trial has none yet."""
    note: str
    """Reason of a failure."""
    configuration: NotRequired[int]
    seed: NotRequired[int]


class BestOutput(TypedDict):
    """A trial, or with several seeds a configuration, by its metrics."""

    number: int
    run_id: str
    values: dict[str, Any]
    step: int
    """Step of the first metric's value."""
    metrics: dict[str, float]
    seeds: NotRequired[list[int]]
    intervals: NotRequired[dict[str, IntervalOutput]]


class ComparableOutput(BestOutput):
    """Best of the trials whose metrics are measured alike."""

    where: dict[str, Any]
    trials: int


class DifferenceOutput(IntervalOutput):
    """A configuration's value minus the best one's."""

    configuration: int
    is_paired: bool
    far_seeds: list[int]
    """Seeds of pairs that are far from the others: the interval depends on them."""


class SweepOutput(TypedDict):
    """`ditlab tune`."""

    run_id: str
    status: Literal["finished", "interrupted", "stopped"]
    """stopped: by a budget (exit code 0); interrupted: by a signal (130). `--resume RUN` goes
    on.
    """
    reason: str
    """Clause on the budget that stopped it; empty for another end."""
    trials: list[TrialOutput]
    """The best first."""
    best: BestOutput | None
    why_no_best: str
    best_of_comparable: list[ComparableOutput]
    report: str
    configurations: NotRequired[list[BestOutput]]
    differences: NotRequired[list[DifferenceOutput]]
    not_significantly_different: NotRequired[list[int]]
    """Configurations whose interval of the difference to the best one holds zero."""
    verdict: NotRequired[list[str]]
    """Sentences of a scheduler that chooses trials: what is behind, what is left, how it ended."""
    quick: NotRequired[Changes]


PlannedTrialOutput = TypedDict(
    "PlannedTrialOutput",
    {
        "number": int,
        "values": dict[str, Any],
        "parameters": int,
        "steps": int,
        "seconds": float | None,
        "configuration": int,
        "seed": int,
    },
)


class SweepDryRunOutput(TypedDict):
    """`ditlab tune --dry-run`."""

    status: Literal["dry-run"]
    trials: list[PlannedTrialOutput]
    """Empty for a search that proposes values as it goes."""
    num_trials: int
    repeats: int
    """Draws of a random search that repeat an earlier one, and are not trained again."""
    concurrent: int
    seconds: float | None
    """Expected duration of what is left of the sweep."""
    device_hours: float | None
    """Expected hours of devices of what is left, as a budget counts them."""
    device: Device
    idle_seconds: float | None
    """Expected duration on this machine without the work of others; null where these did not keep
    it busy.
    """
    quick: NotRequired[Changes]


RESULTS = {
    "tune": SweepOutput | SweepDryRunOutput,
}
"""Type of the object of each command."""
