"""`ditlab ask`: requests to a run in training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.cli.output_types import Numbers
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.receipts.records import VERBS


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


@click.command()
@options.run
@click.argument("verb", metavar="|".join(VERBS), type=click.Choice(VERBS))
@click.option(
    "--wait", type=click.FloatRange(min=0), metavar="SECONDS", help="Longest wait for the answer."
)
@click.option("--no-wait", is_flag=True, help="Return once the request is written.")
@options.as_json
def ask(run: str, verb: str, wait: float | None, no_wait: bool, as_json: bool) -> int:
    """Ask RUN, which trains now, for a grid of samples, an evaluation, a checkpoint, or its end
    after both.

    It is done at the end of a step, by all workers, and changes nothing of what is trained: weights
    are those of a run that was never asked, to the bit. `stop-after-evaluation` evaluates, saves
    and ends the run as Ctrl-C does: interrupted, and --resume goes on.

    Without --wait the command waits until the run has answered or has ended. Ctrl-C ends the wait
    alone: the request stays. What is not done, or has no answer in time, is exit code 2.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab.tracking.records import find_training_run
    from ditlab_addons.ask import request

    try:
        found = find_training_run(Home.from_environment(), run)
    except UserError as error:
        raise UserError(
            f"{error} A run of another DITLAB_HOME is asked on a machine that has that home."
        ) from None
    if found.note:
        output.say(found.note)
    run_id = found.folder.run_id
    with ProgressBars(f"asking run {run_id}") as progress:
        answer = request.ask(found.folder, verb, 0.0 if no_wait else wait, progress.stage)
    for line in request.answer_lines(answer):
        output.print_line(line, as_json)
    output.emit({"run_id": run_id, **asdict(answer)}, as_json)
    output.hint(as_json, "runs show" if verb == "stop-after-evaluation" else "watch", run_id)
    if answer.status == "done" or (no_wait and answer.status == "open"):
        return 0
    return 2
