"""Objects that commands of this folder print under `--json`."""

from typing import Literal

from typing_extensions import TypedDict

from ditlab.cli.output_types import Numbers


class AskOutput(TypedDict):
    """`ditlab ask`: the answer of a run in training."""

    run_id: str
    number: int
    """Number of the request in this run, from 1."""
    verb: Literal["sample", "evaluate", "checkpoint", "stop-after-evaluation"]
    status: Literal["done", "not done", "open"]
    """open: no answer yet; not done: `message` says why."""
    step: int
    """Step after which it was done, or that the run had come to."""
    metrics: Numbers
    files: list[str]
    checkpoint: str | None
    message: str


RESULTS = {
    "ask": AskOutput,
}
"""Type of the object of each command."""
