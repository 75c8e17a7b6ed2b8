"""`ditlab runs rm` and `ditlab data rm`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.cli.terminal import escape_line
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.parts import load_part, places
from ditlab.reports.formatting import terminal_table
from ditlab.spec.values import format_bytes

if TYPE_CHECKING:
    from ditlab_addons.housekeeping.removal import RemovalPlan


class DeletedOutput(TypedDict):
    run_id: str
    name: str
    status: str
    bytes: int
    unsent: int
    tracking_uri: str
    checkpoints: str | None


class DeleteOutput(TypedDict):
    dry_run: bool
    bytes: int
    runs: list[DeletedOutput]


class RemovedOutput(TypedDict):
    removed: list[str]


class SyncedOutput(TypedDict):
    run_id: str
    sent: int
    left: int


class SyncOutput(TypedDict):
    synced: list[SyncedOutput]
    refilled: dict[str, Any] | None


RESULTS = {
    "data rm": RemovedOutput,
    "runs rm": DeleteOutput,
    "runs sync": SyncOutput,
}
"""Type of the object of each command."""


@click.command("rm", short_help="Delete runs, with their checkpoints and journals.")
@click.argument("which", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@click.option(
    "--mlflow",
    is_flag=True,
    help="Delete the runs in MLflow as well, which keeps them until `mlflow gc`.",
)
@options.as_json
def remove_runs(
    which: tuple[str, ...], yes: bool, dry_run: bool, mlflow: bool, as_json: bool
) -> int:
    """Delete runs with their checkpoints, journals and pictures; a sweep with its trials.

    RUN is an id, a unique prefix of one, or a name that one run has. A run that a process trains
    stays, and so does one that a sweep, a best.yaml, another run or a store needs.
    """
    from ditlab.cli.progress import status_text
    from ditlab_addons.housekeeping.removal import plan_removal

    plan = plan_removal(which)
    if len(plan.runs) > 1:
        what = f"{len(plan.runs)} runs"
    else:
        what = f"run {plan.runs[0].folder.run_id}"
    table = terminal_table({"run": "id", "name": "text", "status": "text", "size": "number"})
    for each in plan.runs:
        table.add_row(
            escape_line(each.folder.run_id),
            escape_line(each.name),
            status_text(each.status),
            format_bytes(each.size),
        )
    output.console(as_json).print(table)
    _say_what_is_lost(plan, mlflow)
    if not (dry_run or yes or _is_confirmed(what)):
        output.say("nothing was deleted.")
        return 130
    if not dry_run:
        plan.remove(mlflow=mlflow)
        output.say(f"deleted {what}, {format_bytes(plan.size)}")
    output.emit(
        {"dry_run": dry_run, "bytes": plan.size, "runs": [run.to_dict() for run in plan.runs]},
        as_json,
    )
    if dry_run:
        output.hint(as_json, "runs rm", *output.repeated_arguments("dry_run", "as_json"))
    else:
        output.hint(as_json, "runs")
    return 0


def _say_what_is_lost(plan: RemovalPlan, mlflow: bool) -> None:
    """Say what goes with the runs of a plan, what stays elsewhere, and what else needs them."""
    from ditlab.tracking.access import redact

    for each in plan.runs:
        if each.unsent:
            output.say(
                f"run {each.folder.run_id}: records that MLflow lacks are lost with it: "
                f"{each.unsent:,}"
            )
        if each.checkpoints:
            output.say(f"run {each.folder.run_id}: its checkpoints at {each.checkpoints} stay.")
    for address in dict.fromkeys(redact(each.address) for each in plan.runs if not mlflow):
        output.say(f"{address} keeps what it has received; --mlflow deletes that as well.")
    _say_what_needs(plan.home, [each.folder.run_id for each in plan.runs])


def _say_what_needs(home: Home, names: Sequence[str]) -> None:
    """Say what else needs runs or stores that are to be deleted."""
    for target in places("removal_remarks"):
        for sentence in load_part("removal remark", target, target)(home, names):
            output.say(sentence)


def _is_confirmed(what: str) -> bool:
    if not sys.stdin.isatty():
        raise UserError(f"nobody can be asked whether to delete {what}; add --yes, or --dry-run.")
    return click.confirm(f"Delete {what}?", err=True)


@click.command("rm")
@click.argument("stores", nargs=-1, required=True, metavar="STORE ...")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option(
    "--needed",
    is_flag=True,
    help="Also those that runs were trained on, which then cannot be evaluated.",
)
@options.as_json
def remove_stores(stores: tuple[str, ...], yes: bool, needed: bool, as_json: bool) -> None:
    """Remove stores of DITLAB_HOME by name or NAME@FINGERPRINT. What a run needs stays without
    --needed.
    """
    from ditlab_addons.housekeeping.removal import plan_store_removal, remove_store

    plan = plan_store_removal(stores, needed)
    for each in plan:
        output.say(
            f"{each.folder}: {each.rows:,} rows, {format_bytes(each.bytes)}, "
            f"{', '.join(each.runs) or 'no run'}"
        )
    _say_what_needs(Home.from_environment(), [str(each.path) for each in plan])
    if not yes and (not sys.stdin.isatty() or not click.confirm("Remove?", err=True)):
        raise UserError("nothing was removed; give --yes to remove without the question.")
    for each in plan:
        remove_store(each)
    output.emit({"removed": [each.folder for each in plan]}, as_json)
    output.hint(as_json, "data list")
