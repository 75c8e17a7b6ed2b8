"""`ditlab runs`: recent runs; one run and its events; deletion, upload to MLflow."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli import options, output
from ditlab.cli.terminal import escape_line
from ditlab.errors import RunFailed, UserError, first_line
from ditlab.home import Home
from ditlab.reports.formatting import facts_table, format_duration, terminal_table
from ditlab.runs.locks import RunningState
from ditlab.spec.values import format_bytes

if TYPE_CHECKING:
    from ditlab.runs.description import RunDescription
    from ditlab.runs.events import RunEvent
    from ditlab.tracking.records import RunRecord

_MOST_METRICS = 24
_MOST_REMOTE = 1000
"""Newest runs of a server among which a list is filtered and sorted."""
_UNFINISHED = ["running", "lost", "interrupted", "failed", "stopped", "finished"]
"""Statuses, the furthest from a run's end first."""
_ELSEWHERE = ("system/", "time/", "perf/")
"""Metrics of the machine, and those of the table of times."""


_SORTS = {
    "created": lambda row: row["created"], "name": lambda row: row["name"], "step": lambda row: -row.get("step", 0),
    "loss": lambda row: _lowest(row["train_loss"]), "held-out": lambda row: _lowest(row.get("main_value")),
    "speed": lambda row: -(row.get("samples_per_second") or 0),
}  # fmt: skip


def _lowest(value: float | None) -> float:
    return float("inf") if value is None else value


@click.group(invoke_without_command=True)
@click.option("--num", type=click.IntRange(min=1), default=20, show_default=True, help="Number of runs.")
@click.option("--name", metavar="PATTERN", help="Runs of this name; * stands for any text.")
@click.option("--status", help="Runs of this status: running, lost, finished, failed, interrupted, stopped.")
@click.option("--family", help="Runs of this family.")
@click.option(
    "--sort", type=click.Choice(list(_SORTS)), default="created", show_default=True,
    help="Order: the newest, the name, the furthest, the lowest loss or held-out metric, or the fastest first.",
)  # fmt: skip
@click.option("--each", is_flag=True, help="A line for each run, also of those that differ in the seed alone.")
@click.option("--tracking", metavar="URI", help="List the runs of this MLflow server instead of DITLAB_HOME's.")
@options.as_json
@click.pass_context
def runs(
    ctx: click.Context, num: int, name: str | None, status: str | None, family: str | None, sort: str, each: bool,
    tracking: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List recent runs, the newest first; the commands below show, query, rename, delete and sync them.

    Runs that differ in the seed alone (`ditlab train --seeds`, the arm of a sweep with `seeds`) are one line: NAME x3,
    with means over seeds, and half the 95 % interval of what is held out.

    The training loss is the median of the last 2 % of the steps, as far as the journal's last 64 KiB hold them; held
    out is a run's main metric at its last evaluation; /s the samples a second of its latest steps.
    """
    if ctx.invoked_subcommand is not None:
        return

    from rich.text import Text

    from ditlab.cli.progress import STATUS_COLOURS, status_text
    from ditlab.runs.budget import HomeBudget
    from ditlab.tracking.device_hours import DeviceHours

    home = Home.from_environment()
    budget_facts: dict[str, Any] = {}
    wanted = {"name": name, "status": status, "family": family}
    if tracking:
        is_chosen = sort != "created" or any(wanted.values())
        rows, remarks = _remote_rows(tracking, home, _MOST_REMOTE if is_chosen else num), list[str]()
        if is_chosen and len(rows) == _MOST_REMOTE:
            remarks.append(f"looked through the newest {_MOST_REMOTE:,} runs of the server alone.")
        rows = [row for row in rows if _matches(row, wanted)][: None if sort != "created" else num]
    else:
        rows, remarks = _local_rows(home, None if sort != "created" else num, wanted, has_groups=not each)
        budget, hours = HomeBudget.from_environment(), DeviceHours(home)
        if budget:
            remarks.append(budget.describe(hours))
            budget_facts = {"budget": {"hours": budget.hours, "used": dict(hours.total())}}
        if as_json:  # a look at each journal, for which the table has no room
            for row in rows:
                row["device_hours"] = dict(hours.total(row.get("runs", [row["run_id"]])))
        hours.keep()
    if sort != "created":
        rows = sorted(rows, key=_SORTS[sort])
        if sort == "held-out" and not tracking:
            rows, remark = _by_protocol(home, rows)
            remarks += filter(None, [remark])
        rows = rows[:num]
    mains = {str(row["main_metric"]).removeprefix("eval/") for row in rows if row.get("main_value") is not None}
    held_out = next(iter(mains)) if len(mains) == 1 else "held out"
    columns = {"run": "id", "name": "text", "family": "id", "status": "text", "step": "number", "age": "number"}
    columns |= {"loss": "number", held_out: "number", "/s": "number"}
    table = terminal_table(columns, optional=("/s", "age", "family", "step"))
    for row in rows:
        age = format_duration(max(0, int(time.time() - datetime.fromisoformat(row["created"]).timestamp())))
        shown = "train_loss" if row.get("main_value") is None else "main_value"  # of one column: lines are short
        halves = {shown: row.get("half_widths", {}).get(shown)}
        numbers = [
            "" if row.get(key) is None else f"{row[key]:.4g}" + (f"±{halves[key]:.2g}" if halves.get(key) else "")
            for key in ("train_loss", "main_value", "samples_per_second")
        ]
        if numbers[1] and len(mains) > 1:
            numbers[1] = f"{escape_line(row['main_metric'].removeprefix('eval/'))} {numbers[1]}"
        step = f"{row['step']:,}/{row['total_steps']:,}" if "step" in row else ""
        seeds = f" x{row['seeds']}" if row.get("seeds") else ""
        names = (escape_line(text) for text in (row["run_id"], row["name"] + seeds, row["family"]))
        condition = status_text(row["status"])
        if row["status"] == "lost":
            condition, step = Text(f"lost {row['state']}", STATUS_COLOURS["failed"]), ""
        table.add_row(*names, condition, step, " ".join(age.split()[:2]), *numbers)
    if rows:
        output.console(as_json).print(table)
    else:
        which = "runs like these" if any(wanted.values()) else "runs"
        output.print_line(f"no {which} under {tracking or home.root}", as_json)
    for remark in remarks:
        output.say(remark)
    output.emit({"runs": rows, **budget_facts}, as_json)
    if rows and not tracking:
        output.hint(as_json, "runs show", rows[0]["run_id"].partition(".")[0])  # of an arm its sweep


@runs.command()
@options.run
@click.argument("name")
@options.as_json
def rename(run: str, name: str, as_json: bool) -> None:
    """Give RUN another NAME, here and in MLflow. Its spec keeps the name that it was trained under.

    `--resume auto` finds runs by their spec's name, so a renamed run is resumed by its id or its new name.
    """
    from ditlab.api.run import open_run

    found = open_run(run, warn=output.say)
    before, renamed = found.name, found.rename(name)
    output.print_line(f"run {renamed.id}: {before} is now {renamed.name}", as_json)
    output.emit({"run_id": renamed.id, "name": renamed.name, "before": before}, as_json)
    output.hint(as_json, "runs show", renamed.id)


@runs.command()
@click.argument("sql", metavar="SQL", required=False)
@click.option("--schema", is_flag=True, help="Print the tables and their columns.")
@options.as_json
def query(sql: str | None, schema: bool, as_json: bool) -> None:
    """Answer SQL, one SELECT over the tables runs, metrics and specs of all runs in DITLAB_HOME.

    The three best runs of last week below two million parameters: "SELECT run, name, main_value FROM runs WHERE
    created > datetime('now', '-7 days') AND parameters < 2e6 ORDER BY main_value NULLS LAST LIMIT 3". SQLite reads it,
    in memory; it can write nothing. NaN, and what was not measured, is NULL, which SQLite sorts first by itself.
    """
    from ditlab.runs.query import as_records, query_runs, schema_lines, shown

    if sql is None or schema:
        if not schema:
            raise UserError("SQL is missing; write a SELECT in quotes, or --schema for the tables and their columns.")
        for line in schema_lines():
            output.print_line(line, as_json)
        output.emit({"schema": list(schema_lines())}, as_json)
        output.hint(
            as_json, "runs query", "SELECT run, name, main_value FROM runs ORDER BY main_value NULLS LAST LIMIT 3"
        )
        return
    answer = query_runs(Home.from_environment(), sql)
    numbers = [
        all(isinstance(row[place], int | float | None) for row in answer.rows) for place in range(len(answer.columns))
    ]
    kinds = {name: "number" if is_number else "text" for name, is_number in zip(answer.columns, numbers, strict=True)}
    cells = ([escape_line(shown(value)) for value in row] for row in answer.rows)
    if len(kinds) == len(answer.columns):
        output.console(as_json).print(terminal_table(kinds, cells))
    else:
        raise UserError(f"SQL gives two columns of one name ({', '.join(answer.columns)}); name them apart with AS.")
    for note in answer.notes:
        output.say(note)
    output.emit({"columns": answer.columns, "rows": as_records(answer)}, as_json)
    first = answer.rows[0][answer.columns.index("run")] if answer.rows and "run" in answer.columns else None
    if isinstance(first, str):  # SQL may call a number so
        output.hint(as_json, "runs show", first)
    else:
        output.hint(as_json, "runs query", "--schema")


@runs.command()
@click.argument("which", metavar="[RUN]...", nargs=-1)
@click.option("--tracking", metavar="URI", help="MLflow address to send to instead of the run's own.")
@options.as_json
def sync(which: tuple[str, ...], tracking: str | None, as_json: bool) -> None:
    """Send records that MLflow has not received, of the runs named or of all.

    A DITLAB_HOME that was moved or copied, or whose MLflow database is damaged, gets a new database, filled from all
    runs' journals. The old one is kept under another name; notes and tags that people wrote there are copied.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab.tracking.records import find_run, record_remarks, scan_runs
    from ditlab.tracking.refill import refill, refill_reason
    from ditlab.tracking.upload import sync_runs

    home, filled = Home.from_environment(), None
    reason = "" if tracking else refill_reason(home)
    if which and not reason:
        found = [find_run(home, text) for text in which]
        for note in filter(None, (one.note for one in found)):
            output.say(note)
        records = [one.record for one in found]
    else:
        scanned = scan_runs(home)
        records = scanned.records
        for remark in record_remarks(scanned):
            output.say(remark)
    num = f"{len(records):,} run{'s' if len(records) > 1 else ''}"
    with ProgressBars(f"sending what MLflow has missed of {num}") as progress:
        if reason:
            filled, results = refill(home, records, reason, progress.say)
        else:
            results = sync_runs(records, home, tracking, warn=progress.say)
    for line in filled.lines() if filled else ():
        output.print_line(escape_line(line), as_json)
    for result in results:
        if result.sent or result.left or which:
            output.say(f"{result.run_id}: records sent: {result.sent:,}, left: {result.left:,}")
    faults = [result.fault for result in results if result.fault]
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    if not any(result.left for result in results):
        output.hint(as_json, "ui")
    synced = [{"run_id": r.run_id, "sent": r.sent, "left": r.left} for r in results]
    output.emit({"synced": synced, "refilled": asdict(filled) if filled else None}, as_json)


def _matches(row: Mapping[str, Any], wanted: Mapping[str, str | None]) -> bool:
    return all(value is None or fnmatchcase(str(row.get(key, "")), value) for key, value in wanted.items())


def _local_rows(
    home: Home, num: int | None, wanted: Mapping[str, str | None], *, has_groups: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of the newest runs that are wanted, all for None, and sentences on what could not be read.

    With `has_groups` runs that differ in the seed alone are one row, in the place of the newest.
    """
    from ditlab.tracking.journal import damaged_lines
    from ditlab.tracking.records import group_members, record_remarks, scan_runs

    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    damaged, runs = 0, scan_runs(home)
    groups = group_members(runs.records) if has_groups else {}
    shown: set[str] = set()
    for record in runs.records:
        if len(rows) == num or record.group in shown:
            continue
        members = groups.get(record.group, [])
        shown |= {record.group} if members else set()
        found = [_row(home, each, wanted, faults) for each in members or [record]]
        kept = [row for row in found if row]
        damaged += sum(row.pop("num_damaged") for row in kept)
        if kept:
            rows.append(_group_row(record.group, kept, runs.records) if len(kept) > 1 else kept[0])
    remarks = [*record_remarks(runs), *faults]
    if damaged:
        remarks.append(f"last 64 KiB of these runs' journals: {damaged_lines(damaged)}")
    return rows, remarks


def _by_protocol(home: Home, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Order rows that are sorted by their main metric by what it is measured with, and say so where that differs."""
    from ditlab.receipts.records import TAG_PREFIX
    from ditlab.runs.query import protocol_of
    from ditlab.tracking.journal import last_tag

    ways: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        metric, way = row.get("main_metric") or "", ("", "")
        if row.get("main_value") is not None:
            tag = f"{TAG_PREFIX}{metric.partition('/')[0]}"
            way = metric, protocol_of(metric, {tag: last_tag(home.run(row["run_id"]), tag)})
        ways.setdefault(way, []).append(row)
    without = ways.pop(("", ""), [])
    named = [f"{metric.removeprefix('eval/')} {way}".strip() for metric, way in ways]
    remark = f"sorted apart, as values of other measurements do not rank: {'; '.join(named)}." if len(ways) > 1 else ""
    return [row for each in [*ways.values(), without] for row in each], remark


def _row(home: Home, record: RunRecord, wanted: Mapping[str, str | None], faults: list[str]) -> dict[str, Any] | None:
    """Row of a run, with `num_damaged` lines of its journal; None where it is not wanted. Appends to `faults`."""
    from ditlab.runs.locks import running_state
    from ditlab.tracking.history import SPEED
    from ditlab.tracking.journal import last_value, main_metric, recent_metrics

    if not _matches(vars(record), {key: value for key, value in wanted.items() if key != "status"}):
        return None
    running = None
    if record.status == "running":  # its process or job may be gone
        running = _with_job(record, running_state(home.run(record.run_id), record))
    status = running.state.replace("unseen", "running") if running else record.status
    if not _matches({"status": status}, {"status": wanted["status"]}):
        return None
    recent = recent_metrics(home.run(record.run_id))
    if recent.fault:
        faults.append(f"the journal of run {record.run_id} cannot be read ({recent.fault}).")
    names = ("run_id", "name", "family", "status", "step", "total_steps", "created", "message")
    row = {name: getattr(record, name) for name in names} | {"train_loss": output.finite(recent.loss)}
    row["step"] = max(record.step, recent.step)
    metrics = {name: output.finite(value) for name, value in recent.latest.items()}
    main = main_metric(home.run(record.run_id))
    value = metrics.get(main)
    if main and main not in metrics:  # its last evaluation lies further back
        value = output.finite(last_value(home.run(record.run_id), main))
    row |= {"main_metric": main, "main_value": value, "metrics": metrics, "num_damaged": recent.num_damaged}
    row |= {"samples_per_second": metrics.get(SPEED), "status": status, "state": running.text if running else ""}
    if record.trials:
        row["family"] = f"{record.family} {'seeds' if record.is_group else 'sweep'}"
    return row


def _group_row(group: str, rows: list[dict[str, Any]], records: Sequence[RunRecord]) -> dict[str, Any]:
    """One row of runs that differ in the seed alone: means over those of them that have a value, the newest one's
    date, and the status of the one that is furthest from its end."""
    from ditlab.intervals import paired_interval

    parent = next((record for record in records if record.run_id == group), None)
    status = min((row["status"] for row in rows), key=_UNFINISHED.index)
    means, halves = dict[str, float | None](), dict[str, float]()
    for key in ("train_loss", "main_value", "samples_per_second"):
        values = [row[key] for row in rows if row[key] is not None]
        interval = paired_interval(values) if values else None
        means[key] = interval.mean if interval else None
        if interval and len(values) > 1:
            halves[key] = interval.half_width
    return {
        **rows[0], **means, "run_id": group, "status": status, "half_widths": halves, "seeds": len(rows),
        "name": parent.name if parent else re.sub(r"-seed\d+$", "", rows[0]["name"]), "metrics": {},
        "created": max(row["created"] for row in rows), "step": min(row["step"] for row in rows),
        "message": next((row["message"] for row in rows if row["message"]), ""),
        "runs": [row["run_id"] for row in rows],
    }  # fmt: skip


def _with_job(record: RunRecord, running: RunningState) -> RunningState:
    """Add what a cluster's job server says of a run that another host trains, where one answers."""
    if running.state != "unseen" or not (job := record.process.get("job")):
        return running
    from ditlab.cluster.jobs import END_STATUSES, default_address, open_job_server

    try:
        with open_job_server(default_address()) as jobs:
            status = jobs.state(job)[0]
    except (UserError, RunFailed):
        return running
    if status in END_STATUSES:
        return running._replace(state="lost", text=f"at step {record.step:,} or later: its Ray job {job} has ended")
    return RunningState("running", f"its Ray job {job} is {status.lower()}")


def _remote_rows(tracking: str, home: Home, num: int) -> list[dict[str, Any]]:
    from ditlab.tracking.mlflow_runs import list_mlflow_runs

    rows = list_mlflow_runs(tracking, home, num)
    return [{**row, "train_loss": output.finite(row["train_loss"])} for row in rows]


@click.command(short_help="Show one run.")
@options.run
@options.as_json
def show(run: str, as_json: bool) -> None:
    """Show RUN: its status, spec, last metrics, files, checkpoints, and what MLflow has not received.

    RUN is an id, a prefix of one, or a name; a sweep has one as well.
    """
    from ditlab.runs.description import describe_run
    from ditlab.tracking.records import find_run

    home = Home.from_environment()
    found = describe_run(home, find_run(home, run))
    record, terminal = found.record, output.console(as_json)
    output.print_line(f"run {record.run_id}: {record.name}", as_json)
    facts = _facts(found)
    terminal.print(facts_table({name: "\n".join(map(escape_line, text.split("\n"))) for name, text in facts.items()}))
    if found.metrics:
        names = [name for name in sorted(found.metrics) if not name.startswith(_ELSEWHERE)][:_MOST_METRICS]
        last = [(name, *found.metrics[name]) for name in names]
        rows = ((escape_line(name), f"{value:.5g}", f"{step:,}") for name, step, value in last)
        output.print_line("", as_json)
        terminal.print(terminal_table({"metric": "text", "last value": "number", "step": "number"}, rows))
        if found.held_out_text:
            output.print_line(found.held_out_text, as_json)
        if left := len(found.metrics) - len(names):
            output.print_line(f"and {left} more metric{'s' if left > 1 else ''}, which --json shows", as_json)
        for line in ["", *output.time_lines(found.time)] if found.time else ():
            output.print_line(line, as_json)
    for note in found.notes:
        output.say(note)
    output.emit(found.to_dict(), as_json)
    is_lost = found.running is not None and found.running.state == "lost"
    if record.is_group and record.status != "finished":
        seeds = ("--seeds", str(record.trials), "--resume", record.run_id)
        output.hint(as_json, "train", output.relative(found.folder.spec), *seeds)
    elif record.trials and record.status != "finished":
        output.hint(as_json, "tune", "--resume", record.run_id)
    elif (record.status in ("failed", "interrupted") or is_lost) and not record.trials:
        output.hint(as_json, "train", output.relative(found.folder.spec), "--resume", record.run_id)
        output.hint(as_json, "runs log", record.run_id)
    elif found.unsent:
        output.hint(as_json, "runs sync", record.run_id)
    elif found.checkpoint_steps and not record.trials:
        output.hint(as_json, "sample", record.run_id)
    else:
        output.hint(as_json, "watch" if record.status == "running" else "report", record.run_id)


def _facts(found: RunDescription) -> dict[str, str]:
    """Lines of the description by their headings."""
    from ditlab.runs.lineage import lineage_lines

    record, saved = found.record, found.checkpoint_steps
    kind = f"sweep of {record.trials} trials over {record.family}" if record.trials else record.family
    kind = f"group of {record.trials} seeds of {record.family}" if record.is_group else kind
    whose = "group" if record.group == record.parent else "sweep"
    status = f"{record.status}, step {record.step:,} of {record.total_steps:,}" if not record.trials else record.status
    if found.running and found.running.state == "lost":
        status = f"lost {found.running.text}: its process has ended without a word"
    elif found.running:
        status += f"; {_with_job(record, found.running).text}"
    of_trials = ", ".join(f"{number} {status}" for status, number in sorted(found.trials.items()))
    steps = ", ".join(f"{step:,}" for step in saved[-8:]) or "none"
    checkpoints = f"{'... ' if len(saved) > 8 else ''}{steps} ({found.checkpoint_place})"
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in found.sizes.items() if name != "total" and size)
    queued = f"records that wait for MLflow: {found.unsent:,}" if found.unsent else "nothing: MLflow has every record"
    return {
        "kind": kind,
        "status": status,
        "message": record.message,
        "trial": f"{record.trial} of {whose} {record.parent}" if record.parent else "",
        "trials": of_trials,
        "lineage": "\n".join(lineage_lines(found.lineage, record.run_id)) if found.lineage else "",
        "created": f"{datetime.fromisoformat(record.created).astimezone():%Y-%m-%d %H:%M:%S}",
        "updated": f"{datetime.fromisoformat(record.updated).astimezone():%Y-%m-%d %H:%M:%S}",
        "spec": "\n".join(f"{name}: {escape_line(value)}" for name, value in found.spec.items()),
        "proof": found.proof,
        "speed": "" if found.speed is None else f"{found.speed:,.4g} samples/s, the median of the run",
        "checkpoints": "" if record.trials else checkpoints,
        "folder": str(found.folder.path),
        "size": f"{format_bytes(found.sizes['total'])} ({parts})" if parts else format_bytes(found.sizes["total"]),
        "tracking": found.tracking_uri,
        "queued": "" if found.unsent is None else queued,
    }


@click.command(short_help="Print the events of one run.")
@options.run
@click.option("--tail", metavar="N", type=click.IntRange(min=1), help="Only the last N events.")
@click.option("--follow", is_flag=True, help="Go on with new events as they come, until the run ends or Ctrl-C.")
@options.as_json
def log(run: str, tail: int | None, follow: bool, as_json: bool) -> None:
    """Print RUN's events in their order: starts, evaluations, checkpoints that are kept, failures, logged files, ends.

    RUN is an id, a prefix of one, or a name. Metrics of single steps are in MLflow and `ditlab runs show`.
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
    output.emit({"run_id": found.record.run_id, "events": [event.to_dict() for event in shown]}, as_json)
    output.hint(as_json, "runs show", found.record.run_id)


@click.command(short_help="Delete runs, with their checkpoints and journals.")
@click.argument("which", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@click.option("--mlflow", is_flag=True, help="Delete the runs in MLflow as well, which keeps them until `mlflow gc`.")
@options.as_json
def rm(which: tuple[str, ...], yes: bool, dry_run: bool, mlflow: bool, as_json: bool) -> int:
    """Delete runs with their checkpoints, journals and pictures; a sweep with its trials.

    RUN is an id, a unique prefix of one, or a name that one run has. A run that a process trains stays, and so does
    one that a sweep, a best.yaml, another run or a store needs.
    """
    from ditlab.api.removal import plan_removal
    from ditlab.cli.progress import status_text
    from ditlab.tracking.access import redact

    plan = plan_removal(which)
    what = f"{len(plan.runs)} runs" if len(plan.runs) > 1 else f"run {plan.runs[0].folder.run_id}"
    table = terminal_table({"run": "id", "name": "text", "status": "text", "size": "number"})
    for each in plan.runs:
        names = escape_line(each.folder.run_id), escape_line(each.name)
        table.add_row(*names, status_text(each.status), format_bytes(each.size))
    output.console(as_json).print(table)
    for each in plan.runs:
        if each.unsent:
            output.say(f"run {each.folder.run_id}: records that MLflow lacks are lost with it: {each.unsent:,}")
        if each.checkpoints:
            output.say(f"run {each.folder.run_id}: its checkpoints at {each.checkpoints} stay.")
    for address in dict.fromkeys(redact(each.address) for each in plan.runs if not mlflow):
        output.say(f"{address} keeps what it has received; --mlflow deletes that as well.")
    if not dry_run:
        if not yes and not sys.stdin.isatty():
            raise UserError(f"nobody can be asked whether to delete {what}; add --yes, or --dry-run.")
        if not yes and not click.confirm(f"Delete {what}?", err=True):
            output.say("nothing was deleted.")
            return 130
        plan.remove(mlflow=mlflow)
        output.say(f"deleted {what}, {format_bytes(plan.size)}")
    output.emit({"dry_run": dry_run, "bytes": plan.size, "runs": [run.to_dict() for run in plan.runs]}, as_json)
    if dry_run:
        output.hint(as_json, "runs rm", *output.repeated_arguments("dry_run", "as_json"))
    else:
        output.hint(as_json, "runs")
    return 0


for _command in (show, log, rm):
    runs.add_command(_command)
