"""`ditlab make`: a graph of steps, made as far as it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.cli.output_types import Numbers
from ditlab.errors import UserError


class StepOutput(TypedDict):
    """A step of a graph."""

    step: str
    kind: str
    status: str
    """done, missing, waiting, running, elsewhere, failed or skipped."""
    reason: str
    """Why it is not done; of one that is, how its result differs from what its spec has."""
    needs: list[str]
    identities: list[str]
    """Hash of what decides each of its results."""
    runs: list[str]
    places: list[str]
    metrics: list[Numbers]
    seconds: float | None
    """Seconds that its commands took now."""
    forecast: float | None
    """Under --forecast: seconds that its commands are expected to take."""
    content: NotRequired[list[dict[str, Any]]]
    """Under --explain: what decides each result."""


class MakeOutput(TypedDict):
    """`ditlab make`."""

    name: str
    steps: list[StepOutput]
    page: str | None


RESULTS = {"make": MakeOutput}


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("steps", nargs=-1, metavar="[STEP ...]")
@options.overrides
@click.option("--dry-run", is_flag=True, help="Show each step's state, and why; start nothing.")
@click.option(
    "--forecast",
    "forecasts",
    is_flag=True,
    help="As --dry-run, and how long trainings (`ditlab plan`) and sweeps take.",
)
@click.option("--explain", metavar="STEP", help="Show what decides the result of one step.")
@click.option("--local", is_flag=True, help="Train in one process, without Ray.")
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    help=(
        "Steps that run at the same time at most (default: those that find cores, by "
        "resources.cpus_per_worker; on a cluster 8, which wait there for room)."
    ),
)
@options.as_json
def make(
    file: Path,
    steps: tuple[str, ...],
    explain: str | None,
    dry_run: bool,
    forecasts: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Make the steps of FILE that are not done, and those that they need; without STEP all.

    A step is done where the home has what it makes: data, a run, a sweep, files, made of the same
    spec, data and weights; a run or a sweep also where its command was typed. Its command runs as
    if it were typed. A step that fails ends those that need it alone.
    """
    from ditlab_addons.steps import making
    from ditlab_addons.steps.page import terminal_lines

    if explain:
        steps = (*steps, explain)
    dry_run = dry_run or forecasts or explain is not None
    made = making.make(
        file, *steps, dry_run=dry_run, forecasts=forecasts, say=output.say, **settings
    )
    shown = made.to_dict()
    explained = made.graph.families.get(explain or "", ())
    for each in shown["steps"]:
        tasks = made.states[each["step"]].tasks
        if each["step"] not in explained:
            continue
        if not tasks:
            raise UserError(f"--explain {explain}: {each['reason']}, which decides its result.")
        each["content"] = [dict(task.content) for task in tasks]
        for task in tasks:
            output.print_line(f"ditlab {' '.join(task.arguments)}", as_json)
            output.print_yaml(dict(task.content), as_json)
    for line in () if explain else terminal_lines(shown["steps"]):
        output.print_line(line, as_json)
    if made.page:
        output.print_line(f"page: {output.relative(made.page)}", as_json)
    output.emit(shown, as_json)
    if dry_run:
        own = ("dry_run", "forecasts", "explain", "as_json")
        output.hint(as_json, "make", *output.repeated_arguments(*own))
    return made.code
