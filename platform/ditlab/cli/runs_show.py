"""`ditlab runs show`: one run."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from ditlab.cli.common import console, emit, json_option, print_line, run_argument, say
from ditlab.cli.hints import hint, relative

if TYPE_CHECKING:
    from ditlab.runs.description import RunDescription

_MOST_METRICS = 24
_ELSEWHERE = ("system/", "time/", "perf/")
"""Metrics of the machine, and those of the table of times."""


@click.command(short_help="Show one run.")
@run_argument
@json_option
def show(run: str, as_json: bool) -> None:
    """Show RUN: its status, spec, last metrics, files, checkpoints, and what MLflow has not received.

    RUN is an id, a prefix of one, or a name; a sweep has one as well.
    """
    from ditlab.home import Home
    from ditlab.runs.description import describe_run
    from ditlab.tracking.records import find_run

    home = Home.from_environment()
    found = describe_run(home, find_run(home, run))
    _print(found, as_json)
    for note in found.notes:
        say(note)
    emit(found.to_dict(), as_json)
    _hint(found, as_json)


def size_text(num_bytes: int) -> str:
    """A size for people: `4.1 MiB`."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes} B" if unit == "B" else f"{size:,.1f} {unit}"


def _print(found: RunDescription, as_json: bool) -> None:
    from rich.table import Table

    from ditlab.cli.visible import shown_line

    record = found.record
    print_line(f"run {record.run_id}: {record.name}", as_json)
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True, style="dim")
    facts.add_column(overflow="fold")
    for name, text in _facts(found).items():
        facts.add_row(name, "\n".join(map(shown_line, text.split("\n"))))
    out = console(as_json)
    out.print(facts)
    if not found.metrics:
        return
    names = [name for name in sorted(found.metrics) if not name.startswith(_ELSEWHERE)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("metric", overflow="fold")
    table.add_column("last value", justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    for name in names[:_MOST_METRICS]:
        step, value = found.metrics[name]
        table.add_row(shown_line(name), f"{value:.5g}", f"{step:,}")
    print_line("", as_json)
    out.print(table)
    if left := len(found.metrics) - len(names[:_MOST_METRICS]):
        print_line(f"and {left} more metric{'s' if left > 1 else ''}, which --json shows", as_json)
    if found.time:
        from ditlab.cli.time_table import time_lines

        print_line("", as_json)
        for line in time_lines(found.time):
            print_line(line, as_json)


def _facts(found: RunDescription) -> dict[str, str]:
    """Lines of the description by their headings, without empty ones."""
    from ditlab.cli.visible import shown_line
    from ditlab.runs.lineage import lineage_lines

    record, kept = found.record, found.checkpoints
    kind = f"sweep of {record.trials} trials over {record.family}" if record.trials else record.family
    status = f"{record.status}, step {record.step:,} of {record.total_steps:,}" if not record.trials else record.status
    if found.is_locked:
        status += "; a process trains it now"
    elif record.status == "running":
        status += "; no process trains it on this machine"
    of_trials = ", ".join(f"{number} {status}" for status, number in sorted(found.trials.items()))
    steps = ", ".join(f"{step:,}" for step in kept.steps[-8:]) or "none"
    checkpoints = kept.fault or f"{'... ' if len(kept.steps) > 8 else ''}{steps} ({kept.place})"
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in found.sizes.items() if name != "total" and size)
    queued = "" if found.unsent is None else f"{found.unsent:,} records wait for MLflow"
    if found.unsent in (0, 1):
        queued = "1 record waits for MLflow" if found.unsent else "nothing: MLflow has every record"
    facts = {
        "kind": kind,
        "status": status,
        "message": record.message,
        "trial": f"{record.trial} of sweep {record.parent}" if record.parent else "",
        "trials": of_trials,
        "lineage": "\n".join(lineage_lines(found.lineage, record.run_id)) if found.lineage else "",
        "created": _moment(record.created),
        "updated": _moment(record.updated),
        "spec": "\n".join(f"{name}: {shown_line(value)}" for name, value in found.spec.items()),
        "proof": found.proof,
        "checkpoints": "" if record.trials else checkpoints,
        "folder": str(found.folder.path),
        "size": f"{size_text(found.sizes['total'])} ({parts})" if parts else size_text(found.sizes["total"]),
        "tracking": found.tracking_uri,
        "queued": queued,
    }
    return {name: text for name, text in facts.items() if text}


def _hint(found: RunDescription, as_json: bool) -> None:
    """Print the next useful command."""
    record = found.record
    if record.trials and record.status != "finished":
        hint(as_json, "tune", "--resume", record.run_id)
    elif record.status in ("failed", "interrupted") and not record.trials:
        hint(as_json, "train", relative(found.folder.spec), "--resume", record.run_id)
        hint(as_json, "runs log", record.run_id)
    elif found.unsent:
        hint(as_json, "runs sync", record.run_id)
    elif found.checkpoints.steps and not record.trials:
        hint(as_json, "sample", record.run_id)


def _moment(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}"
