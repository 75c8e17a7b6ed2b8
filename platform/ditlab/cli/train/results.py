"""Objects that commands of this folder print under `--json`."""

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from ditlab.cli.output_types import Changes, IntervalOutput, Numbers

FiguresLeft = Annotated[
    list[str], Field(description="Kinds of figures that are left to `ditlab figures RUN`.")
]


class TrainedOutput(TypedDict):
    """`ditlab train`: a run that has ended."""

    run_id: str
    status: Literal["finished", "interrupted", "stopped"]
    """interrupted: after a final checkpoint, and exit code 130; `--resume RUN` goes on."""
    reason: str
    """Clause on the budget that ended it; empty for another end."""
    step: int
    metrics: Numbers
    """Metrics of the last step and of the last evaluation."""
    checkpoint: str | None
    tracking_uri: str
    figures_left: NotRequired[FiguresLeft]
    quick: NotRequired[Changes]


class SeedsOutput(TypedDict):
    """`ditlab train --seeds`."""

    run_id: str
    """Id of the group."""
    status: Literal["finished", "interrupted", "failed"]
    seeds: list[int]
    runs: list[TrainedOutput]
    """Runs that trained now."""
    metrics: dict[str, IntervalOutput]
    figures_left: NotRequired[FiguresLeft]
    quick: NotRequired[Changes]


class TrainDryRunOutput(TypedDict):
    """`ditlab train --dry-run`: nothing was started."""

    status: Literal["dry-run"]
    spec_hash: str
    steps: int
    total: int
    """Parameters."""
    not_trained: dict[str, int]
    """Parameters that stay as they are, by the module that holds them."""
    quick: NotRequired[Changes]


SubmittedOutput = TypedDict("SubmittedOutput", {"job": str, "status": str})


@with_config(ConfigDict(extra="allow"))
class JobOutput(TypedDict):
    """`ditlab submit`: also every key of the object that the job's own command printed."""

    job: str
    job_status: str


RESULTS = {
    "train": TrainedOutput | SeedsOutput | TrainDryRunOutput,
    "submit": SubmittedOutput | JobOutput,
}
"""Type of the object of each command."""
