"""`ditlab runs`: recent runs, and the upload of records that MLflow has not received; beside it `runs_*.py`."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import console, emit, json_option, print_line, say
from ditlab.cli.hints import hint
from ditlab.cli.runs_log import log
from ditlab.cli.runs_relocate import relocate
from ditlab.cli.runs_rm import rm
from ditlab.cli.runs_show import show

if TYPE_CHECKING:
    from ditlab.home import Home


@click.group(invoke_without_command=True)
@click.option(
    "--num", type=click.IntRange(min=1), default=20, show_default=True, help="Number of runs, the newest first."
)
@click.option("--tracking", metavar="URI", help="List the runs of this MLflow server instead of DITLAB_HOME's.")
@json_option
@click.pass_context
def runs(ctx: click.Context, num: int, tracking: str | None, as_json: bool) -> None:
    """List recent runs, the newest first; the commands below show, delete or mend them."""
    if ctx.invoked_subcommand is not None:
        return
    from ditlab.home import Home

    home = Home.from_environment()
    rows, remarks = (_remote_rows(tracking, home, num), []) if tracking else _local_rows(home, num)
    _print(rows, tracking or str(home.root), as_json)
    for remark in remarks:
        say(remark)
    emit({"runs": rows}, as_json)
    if rows and not tracking:
        hint(as_json, "runs show", rows[0]["run_id"])


for _command in (show, log, rm, relocate):
    runs.add_command(_command)


@runs.command()
@click.argument("which", metavar="[RUN]...", nargs=-1)
@click.option("--tracking", metavar="URI", help="MLflow address to send to instead of the run's own.")
@json_option
def sync(which: tuple[str, ...], tracking: str | None, as_json: bool) -> None:
    """Send records that MLflow has not received, of the runs named or of all."""
    from ditlab.cli.progress_bars import ProgressBars
    from ditlab.errors import UserError
    from ditlab.home import Home
    from ditlab.tracking.records import find_run, record_remarks, scan_runs
    from ditlab.tracking.upload import sync_runs

    home = Home.from_environment()
    if which:
        found = [find_run(home, text) for text in which]
        for note in filter(None, (one.note for one in found)):
            say(note)
        records = [one.record for one in found]
    else:
        scanned = scan_runs(home)
        records = scanned.records
        for remark in record_remarks(scanned):
            say(remark)
    with ProgressBars(
        f"sending what MLflow has missed of {len(records):,} run{'s' if len(records) > 1 else ''}"
    ) as progress:
        results = sync_runs(records, home, tracking, warn=progress.say)
    for result in results:
        if result.sent or result.left or which:
            say(f"{result.run_id}: {result.sent:,} records sent, {result.left:,} left")
    faults = [result.fault for result in results if result.fault]
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    if not any(result.left for result in results):
        hint(as_json, "ui")
    emit({"synced": [{"run_id": r.run_id, "sent": r.sent, "left": r.left} for r in results]}, as_json)


def _local_rows(home: Home, num: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of the newest runs, and sentences on what could not be read."""
    from ditlab.tracking.journal import recent_metrics
    from ditlab.tracking.records import record_remarks, scan_runs

    rows, damaged, runs = [], 0, scan_runs(home)
    faults: list[str] = []
    for record in runs.records[:num]:
        recent = recent_metrics(home.run(record.run_id))
        loss, damaged = recent.latest.get("train/loss"), damaged + recent.num_damaged
        if recent.fault:
            faults.append(f"the journal of run {record.run_id} cannot be read ({recent.fault}).")
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
    remarks = [*record_remarks(runs), *faults]
    if damaged:
        remarks.append(
            f"{damaged} damaged line{'s' if damaged > 1 else ''} in the last 64 KiB of these runs' journals passed "
            "over; `ditlab runs show RUN` counts those of a whole journal."
        )
    return rows, remarks


def _remote_rows(tracking: str, home: Home, num: int) -> list[dict[str, Any]]:
    from ditlab.tracking.mlflow_runs import list_mlflow_runs

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
    from rich.table import Table

    from ditlab.cli.terminal import status_text
    from ditlab.cli.visible import shown_line

    if not rows:
        print_line(f"no runs under {where}", as_json)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("run", "name", "family", "status"):
        table.add_column(heading, no_wrap=heading == "run")
    for heading in ("step", "age", "train loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        loss = "" if row["train_loss"] is None else f"{row['train_loss']:.4g}"
        step = f"{row['step']:,}/{row['total_steps']:,}" if "step" in row else ""
        names = (shown_line(row[key]) for key in ("run_id", "name", "family"))
        table.add_row(*names, status_text(row["status"]), step, _age(row["created"]), loss)
    console(as_json).print(table)


def _age(created: str) -> str:
    seconds = max(0, int(time.time() - datetime.fromisoformat(created).timestamp()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _finite(value: float | None) -> float | None:
    """The value, or None for NaN and infinities, which JSON has not."""
    return value if value is not None and math.isfinite(value) else None
