"""`ditlab runs`: recent runs; one run and its events; another name; SQL over all."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli import options, output
from ditlab.cli.main import OpenGroup
from ditlab.cli.terminal import escape_line
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.reports.formatting import facts_table, format_duration, terminal_table
from ditlab.runs.locks import RunningState, running_state
from ditlab.spec.values import format_bytes

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ditlab.runs.description import RunDescription
    from ditlab.runs.events import RunEvent
    from ditlab.tracking.records import RunRecord

_MOST_METRICS = 24
_ELSEWHERE = ("system/", "time/", "perf/")
"""Metrics of the machine, and those of the table of times."""


RunRow = dict[str, Any]
"""A run by the keys of `--json`."""


@click.group(cls=OpenGroup, invoke_without_command=True)
@click.option(
    "--num", type=click.IntRange(min=1), default=20, show_default=True, help="Number of runs."
)
@click.option("--name", metavar="PATTERN", help="Runs of this name; * stands for any text.")
@click.option(
    "--status", help="Runs of this status: running, lost, finished, failed, interrupted, stopped."
)
@options.as_json
@click.pass_context
def runs(ctx: click.Context, num: int, name: str | None, status: str | None, as_json: bool) -> None:
    """List recent runs, the newest first; the commands below show, query, rename, delete and sync
    them.

    The training loss is the median of the last 2 % of the steps; held out is a run's main metric at
    its last evaluation; /s the median of the samples a second. `ditlab runs query` sorts and
    filters by any of them.
    """
    if ctx.invoked_subcommand is not None:
        return

    from ditlab.runs.budget import HomeBudget
    from ditlab.tracking.index import DeviceHours

    home = Home.from_environment()
    rows, remarks = _rows(home, num, name, status)
    found: RunRow = {"runs": rows}
    budget = HomeBudget.from_environment()
    if budget:
        hours = DeviceHours(home)
        remarks.append(budget.describe(hours))
        found["budget"] = {"hours": budget.hours, "used": dict(hours.total())}
    if rows:
        output.console(as_json).print(_runs_table(rows))
    else:
        wanted = "runs like these" if name or status else "runs"
        output.print_line(f"no {wanted} under {home.root}", as_json)
    for remark in remarks:
        output.say(remark)
    output.emit(found, as_json)
    if rows:
        output.hint(as_json, "runs show", rows[0]["run_id"])


def _rows(
    home: Home, num: int, name: str | None, status: str | None
) -> tuple[list[RunRow], list[str]]:
    """Rows of the newest runs that are wanted, and sentences on what could not be read."""
    from ditlab.runs.listing import run_rows
    from ditlab.tracking.records import record_remarks, scan_runs

    runs = scan_runs(home)
    states: dict[str, RunningState | None] = {}
    chosen: list[RunRecord] = []
    for record in runs.records:
        if len(chosen) == num:
            break
        if name is not None and not fnmatchcase(record.name, name):
            continue
        running = None
        if record.status == "running":
            running = running_state(home.run(record.run_id), record)
        if status in (None, _status_word(record, running)):
            chosen.append(record)
            states[record.run_id] = running
    found = run_rows(home, chosen)
    rows = []
    for record, row in zip(chosen, found.rows, strict=True):
        running = states[record.run_id]
        row["status"] = _status_word(record, running)
        row["state"] = running.text if running else ""
        if record.is_group:
            row["family"] = f"{record.family} seeds"
        elif record.trials:
            row["family"] = f"{record.family} sweep"
        rows.append(row)
    return rows, [*record_remarks(runs), *found.notes]


def _status_word(record: RunRecord, running: RunningState | None) -> str:
    """Status of a run in the list; `lost` for one whose process ended and recorded no end."""
    if running and running.state == "lost":
        return "lost"
    return record.status


def _runs_table(rows: Sequence[RunRow]) -> Table:
    columns = {
        "run": "id",
        "name": "text",
        "family": "id",
        "status": "text",
        "step": "number",
        "age": "number",
    }
    columns |= {"loss": "number", "held out": "number", "/s": "number"}
    table = terminal_table(columns, optional=("/s", "age", "family", "step"))
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: RunRow) -> Iterator[str | Text]:
    from ditlab.cli.progress import status_text

    yield from map(escape_line, (row["run_id"], row["name"], row["family"]))
    if row["status"] == "lost":
        yield status_text(f"lost {row['state']}")
        yield ""
    else:
        yield status_text(row["status"])
        yield f"{row['step']:,}/{row['total_steps']:,}"
    seconds = time.time() - datetime.fromisoformat(row["created"]).timestamp()
    age = format_duration(max(0, int(seconds)))
    yield " ".join(age.split()[:2])
    yield _number(row["train_loss"])
    metric = escape_line((row["main_metric"] or "").removeprefix("eval/"))
    yield f"{metric} {_number(row['main_value'])}".strip()
    yield _number(row["samples_per_second"])


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return f"{value:.4g}"


@runs.command()
@options.run
@click.argument("name")
@options.as_json
def rename(run: str, name: str, as_json: bool) -> None:
    """Give RUN another NAME, here and in MLflow. Its spec keeps the name that it was trained under.

    `--resume auto` finds runs by their spec's name, so a renamed run is resumed by its id or its
    new name.
    """
    from ditlab.api.run import open_run

    found = open_run(run, warn=output.say)
    before = found.name
    renamed = found.rename(name)
    output.print_line(f"run {renamed.id}: {before} is now {renamed.name}", as_json)
    output.emit({"run_id": renamed.id, "name": renamed.name, "before": before}, as_json)
    output.hint(as_json, "runs show", renamed.id)


@click.command(short_help="Show one run.")
@options.run
@options.as_json
def show(run: str, as_json: bool) -> None:
    """Show RUN: its status, spec, last metrics, files, checkpoints, and what MLflow has not
    received.

    RUN is an id, a prefix of one, or a name; a sweep has one as well.
    """
    from ditlab.runs.description import describe_run
    from ditlab.tracking.records import find_run

    home = Home.from_environment()
    found = describe_run(home, find_run(home, run))
    record = found.record
    terminal = output.console(as_json)
    output.print_line(f"run {record.run_id}: {record.name}", as_json)
    facts = {
        name: "\n".join(map(escape_line, text.split("\n"))) for name, text in _facts(found).items()
    }
    terminal.print(facts_table(facts))
    if found.metrics:
        _print_metrics(found, as_json)
    for note in found.notes:
        output.say(note)
    output.emit(found.to_dict(), as_json)
    for command in _next_commands(found):
        output.hint(as_json, *command)


def _print_metrics(found: RunDescription, as_json: bool) -> None:
    names = [name for name in sorted(found.metrics) if not name.startswith(_ELSEWHERE)]
    names = names[:_MOST_METRICS]
    last = [(name, *found.metrics[name]) for name in names]
    rows = ((escape_line(name), f"{value:.5g}", f"{step:,}") for name, step, value in last)
    output.print_line("", as_json)
    output.console(as_json).print(
        terminal_table({"metric": "text", "last value": "number", "step": "number"}, rows)
    )
    if found.held_out_text:
        output.print_line(found.held_out_text, as_json)
    left = len(found.metrics) - len(names)
    if left:
        plural = "s" if left > 1 else ""
        output.print_line(f"and {left} more metric{plural}, which --json shows", as_json)
    if found.time:
        for line in ["", *output.time_lines(found.time)]:
            output.print_line(line, as_json)


def _next_commands(found: RunDescription) -> list[tuple[Any, ...]]:
    """Commands that go on with a run that has not finished, or else use what it has."""
    record = found.record
    spec = output.relative(found.folder.spec)
    resume = ("--resume", record.run_id)
    if record.is_group and record.status != "finished":
        return [("train", spec, "--seeds", record.trials, *resume)]
    if record.trials and record.status != "finished":
        return [("tune", *resume)]
    is_lost = found.running is not None and found.running.state == "lost"
    if is_lost or record.status in ("failed", "interrupted"):
        return [("train", spec, *resume), ("runs log", record.run_id)]
    if found.unsent:
        return [("runs sync", record.run_id)]
    if found.checkpoint_steps and not record.trials:
        return [("sample", record.run_id)]
    return [("watch" if record.status == "running" else "report", record.run_id)]


def _facts(found: RunDescription) -> dict[str, str]:
    """Lines of the description by their headings."""
    from ditlab.runs.lineage import lineage_lines

    record = found.record
    trial = ""
    if record.parent:
        whose = "group" if record.group == record.parent else "sweep"
        trial = f"{record.trial} of {whose} {record.parent}"
    lineage = ""
    if found.lineage:
        lineage = "\n".join(lineage_lines(found.lineage, record.run_id))
    sizes = {name: format_bytes(size) for name, size in found.sizes.items() if size}
    size = sizes.pop("total", format_bytes(0))
    if sizes:
        size += f" ({', '.join(f'{name} {part}' for name, part in sizes.items())})"
    queued = ""  # not known
    if found.unsent:
        queued = f"records that wait for MLflow: {found.unsent:,}"
    elif found.unsent == 0:
        queued = "nothing: MLflow has every record"
    return {
        "kind": _kind(record),
        "status": _status(found),
        "message": record.message,
        "trial": trial,
        "trials": ", ".join(
            f"{number} {status}" for status, number in sorted(found.trials.items())
        ),
        "lineage": lineage,
        "created": f"{datetime.fromisoformat(record.created).astimezone():%Y-%m-%d %H:%M:%S}",
        "updated": f"{datetime.fromisoformat(record.updated).astimezone():%Y-%m-%d %H:%M:%S}",
        "spec": "\n".join(f"{name}: {escape_line(value)}" for name, value in found.spec.items()),
        "proof": found.proof,
        "checkpoints": "" if record.trials else _checkpoints(found),
        "folder": str(found.folder.path),
        "size": size,
        "tracking": found.tracking_uri,
        "queued": queued,
    }


def _kind(record: RunRecord) -> str:
    if record.is_group:
        return f"group of {record.trials} seeds of {record.family}"
    if record.trials:
        return f"sweep of {record.trials} trials over {record.family}"
    return record.family


def _status(found: RunDescription) -> str:
    record = found.record
    running = found.running
    if running and running.state == "lost":
        return f"lost {running.text}: its process ended and recorded no end"
    status = f"{record.status}, step {record.step:,} of {record.total_steps:,}"
    if record.trials:
        status = record.status
    return f"{status}; {running.text}" if running else status


def _checkpoints(found: RunDescription) -> str:
    steps = found.checkpoint_steps
    listed = ", ".join(f"{step:,}" for step in steps[-8:]) or "none"
    if len(steps) > 8:
        listed = f"... {listed}"
    return f"{listed} ({found.checkpoint_place})"


@click.command(short_help="Print the events of one run.")
@options.run
@click.option("--tail", metavar="N", type=click.IntRange(min=1), help="Only the last N events.")
@click.option(
    "--follow",
    is_flag=True,
    help="Go on with new events as they come, until the run ends or Ctrl-C.",
)
@options.as_json
def log(run: str, tail: int | None, follow: bool, as_json: bool) -> None:
    """Print RUN's events in their order: starts, evaluations, checkpoints that are kept, failures,
    logged files, ends.

    RUN is an id, a prefix of one, or a name. Metrics of single steps are in MLflow and `ditlab runs
    show`.
    """
    from ditlab.runs.events import EventReader
    from ditlab.tracking.journal import damaged_lines

    found = options.find_noted(run)
    reader = EventReader(found.folder)
    try:
        shown: list[RunEvent] = []
        for event in chain(reader.read_all()[-(tail or 0) :], reader.follow() if follow else ()):
            shown.append(event)
            moment = f"{datetime.fromtimestamp(event.time / 1000):%Y-%m-%d %H:%M:%S}"
            output.print_line(f"{moment}  {escape_line(event.text)}", as_json)
    except OSError as error:
        if not error.filename:  # a line that could not be printed
            raise
        fault = f"{found.folder.journal} cannot be read ({first_line(error)})"
        raise UserError(f"{fault}; restore it from a copy.") from error
    if not shown:
        output.say(f"run {found.record.run_id} has no events yet.")
    if reader.num_damaged:
        output.say(f"{found.folder.journal}: {damaged_lines(reader.num_damaged)}")
    output.emit(
        {"run_id": found.record.run_id, "events": [event.to_dict() for event in shown]}, as_json
    )
    output.hint(as_json, "runs show", found.record.run_id)


for _command in (show, log):
    runs.add_command(_command)
