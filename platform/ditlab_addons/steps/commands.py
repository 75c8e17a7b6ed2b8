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
    """done, missing, waiting, elsewhere, failed or skipped."""
    reason: str
    """Why it is not done; empty where it is."""
    needs: list[str]
    identities: list[str]
    """Hash of what decides each of its results."""
    runs: list[str]
    places: list[str]
    metrics: list[Numbers]
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
@click.option("--explain", metavar="STEP", help="Show what decides the result of one step.")
@click.option("--local", is_flag=True, help="Train in one process, without Ray.")
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Steps that run at the same time, where they do not need each other.",
)
@options.as_json
def make(
    file: Path,
    steps: tuple[str, ...],
    explain: str | None,
    dry_run: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Make the steps of FILE that are not done, and those that they need; without STEP all.

    A step is done where the home has what it makes: data, a run, a sweep, files, made of the same
    spec, data and weights, whoever made them. Its command runs as if it were typed. A step that
    fails ends those that need it alone.
    """
    from ditlab_addons.steps import making
    from ditlab_addons.steps.page import terminal_lines

    if explain:
        steps = (explain,)
    made = making.make(
        file, *steps, dry_run=dry_run or explain is not None, say=output.say, **settings
    )
    shown = made.to_dict()
    if explain:
        state = made.states[explain]
        if not state.tasks:
            raise UserError(f"--explain {explain}: {state.reason}, which decides its result.")
        shown["steps"] = [
            state.to_dict() | {"content": [dict(task.content) for task in state.tasks]}
        ]
        for task in state.tasks:
            output.print_line(f"ditlab {' '.join(task.arguments)}", as_json)
            output.print_yaml(dict(task.content), as_json)
    else:
        for line in terminal_lines(made.states):
            output.print_line(line, as_json)
        if made.page:
            output.print_line(f"page: {output.relative(made.page)}", as_json)
    output.emit(shown, as_json)
    if dry_run:
        output.hint(as_json, "make", *output.repeated_arguments("dry_run", "as_json"))
    return made.code
