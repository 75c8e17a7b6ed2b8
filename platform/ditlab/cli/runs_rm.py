"""`ditlab runs rm`: deletion of runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ditlab.cli.common import console, emit, json_option, say
from ditlab.cli.runs_show import size_text

if TYPE_CHECKING:
    from ditlab.interface.removal import RemovalPlan


@click.command(short_help="Delete runs, with their checkpoints and journals.")
@click.argument("which", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@click.option("--mlflow", is_flag=True, help="Delete the runs in MLflow as well, which keeps them until `mlflow gc`.")
@json_option
def rm(which: tuple[str, ...], yes: bool, dry_run: bool, mlflow: bool, as_json: bool) -> int:
    """Delete runs with their checkpoints, journals and pictures; a sweep with its trials.

    RUN is an id, a unique prefix of one, or a name that one run has. A run that a process trains stays, and so does
    one that a sweep, a best.yaml, another run or a store needs.
    """
    from ditlab.errors import UserError
    from ditlab.interface.removal import plan_removal

    plan = plan_removal(which)
    _print(plan, mlflow, as_json)
    if not dry_run:
        if not yes:
            if not sys.stdin.isatty():
                raise UserError(f"nobody can be asked whether to delete {_runs(plan)}; add --yes, or --dry-run.")
            if not click.confirm(f"Delete {_runs(plan)}?", err=True):
                say("nothing was deleted.")
                return 130
        plan.remove(mlflow=mlflow)
        say(f"deleted {_runs(plan)}, {size_text(plan.size)}")
    emit({"dry_run": dry_run, "bytes": plan.size, "runs": [run.to_dict() for run in plan.runs]}, as_json)
    return 0


def _runs(plan: RemovalPlan) -> str:
    return f"{len(plan.runs)} runs" if len(plan.runs) > 1 else f"run {plan.runs[0].folder.run_id}"


def _print(plan: RemovalPlan, mlflow: bool, as_json: bool) -> None:
    """Print a table of the runs, and sentences on what stays and what is lost."""
    from rich.table import Table

    from ditlab.cli.terminal import status_text
    from ditlab.cli.visible import shown_line
    from ditlab.tracking.access import redact

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("status")
    table.add_column("size", justify="right", no_wrap=True)
    for run in plan.runs:
        table.add_row(shown_line(run.folder.run_id), shown_line(run.name), status_text(run.status), size_text(run.size))
    console(as_json).print(table)
    for run in plan.runs:
        if run.unsent:
            records = "1 record" if run.unsent == 1 else f"{run.unsent:,} records"
            say(f"run {run.folder.run_id}: {records} that MLflow has not received will be lost.")
        if run.checkpoints:
            say(f"run {run.folder.run_id}: its checkpoints at {run.checkpoints} stay.")
    if not mlflow:
        for address in dict.fromkeys(redact(run.address) for run in plan.runs):
            say(f"{address} keeps what it has received; --mlflow deletes that as well.")
