"""`ditlab runs`: recent runs, and the upload of records that MLflow has not received."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import emit, json_option, say

if TYPE_CHECKING:
    from ditlab.home import Home

_COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "stopped": "blue"}


@click.group(invoke_without_command=True)
@click.option(
    "--num", type=click.IntRange(min=1), default=20, show_default=True, help="Number of runs, the newest first."
)
@click.option("--tracking", metavar="URI", help="List the runs of this MLflow server instead of DITLAB_HOME's.")
@json_option
@click.pass_context
def runs(ctx: click.Context, num: int, tracking: str | None, as_json: bool) -> None:
    """List recent runs."""
    if ctx.invoked_subcommand is not None:
        return
    from ditlab.home import Home

    home = Home.from_environment()
    rows = _remote_rows(tracking, home, num) if tracking else _local_rows(home, num)
    _print(rows, tracking or str(home.root), as_json)
    emit({"runs": rows}, as_json)


@runs.command()
@click.argument("which", metavar="[RUN]...", nargs=-1)
@click.option("--tracking", metavar="URI", help="MLflow address to send to instead of the run's own.")
@json_option
def sync(which: tuple[str, ...], tracking: str | None, as_json: bool) -> None:
    """Send records that MLflow has not received, of the runs named or of all."""
    from ditlab.errors import UserError
    from ditlab.home import Home
    from ditlab.tracking.records import find_run, list_runs
    from ditlab.tracking.upload.sync import sync_runs

    home = Home.from_environment()
    if which:
        found = [find_run(home, text) for text in which]
        for note in filter(None, (one.note for one in found)):
            say(note)
        records = [one.record for one in found]
    else:
        records = list_runs(home)
    results = sync_runs(records, home, tracking, warn=say)
    for result in results:
        if result.sent or result.left or which:
            say(f"{result.run_id}: {result.sent:,} records sent, {result.left:,} left")
    faults = [result.fault for result in results if result.fault]
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    emit({"synced": [{"run_id": r.run_id, "sent": r.sent, "left": r.left} for r in results]}, as_json)


def _local_rows(home: Home, num: int) -> list[dict[str, Any]]:
    from ditlab.tracking.journal.history import recent_metrics
    from ditlab.tracking.records import list_runs

    rows = []
    for record in list_runs(home)[:num]:
        loss = recent_metrics(home.run(record.run_id)).get("train/loss")
        rows.append(
            {
                "run_id": record.run_id,
                "name": record.name,
                "family": f"{record.family} sweep" if record.trials else record.family,
                "status": record.status,
                "step": record.step,
                "total_steps": record.total_steps,
                "created": record.created,
                "train_loss": _finite(loss),
                "message": record.message,
            }
        )
    return rows


def _remote_rows(tracking: str, home: Home, num: int) -> list[dict[str, Any]]:
    from ditlab.tracking.upload.listing import list_mlflow_runs

    return [
        {
            "run_id": run.run_id,
            "mlflow_run_id": run.mlflow_run_id,
            "name": run.name,
            "family": run.family,
            "experiment": run.experiment,
            "status": run.status,
            "created": datetime.fromtimestamp(run.started / 1000).astimezone().isoformat(timespec="milliseconds"),
            "train_loss": _finite(run.metrics.get("train/loss")),
        }
        for run in list_mlflow_runs(tracking, home, num)
    ]


def _print(rows: list[dict[str, Any]], where: str, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=as_json)
    if not rows:
        console.print(f"no runs under {where}", soft_wrap=True)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("run", "name", "family", "status"):
        table.add_column(heading, no_wrap=heading == "run")
    for heading in ("step", "age", "train loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        colour = _COLOURS.get(row["status"], "white")
        loss = "" if row["train_loss"] is None else f"{row['train_loss']:.4g}"
        step = f"{row['step']:,}/{row['total_steps']:,}" if "step" in row else ""
        status = f"[{colour}]{row['status']}[/]"
        table.add_row(row["run_id"], row["name"], row["family"], status, step, _age(row["created"]), loss)
    console.print(table)


def _age(created: str) -> str:
    seconds = max(0, int(time.time() - datetime.fromisoformat(created).timestamp()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _finite(value: float | None) -> float | None:
    """The value, or None for NaN and infinities, which JSON has not."""
    return value if value is not None and math.isfinite(value) else None
