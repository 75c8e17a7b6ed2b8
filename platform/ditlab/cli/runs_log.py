"""`ditlab runs log`: the events of one run."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from ditlab.cli.common import emit, json_option, print_line, run_argument, say

if TYPE_CHECKING:
    from ditlab.runs.events import RunEvent


@click.command(short_help="Print the events of one run.")
@run_argument
@click.option("--tail", metavar="N", type=click.IntRange(min=1), help="Only the last N events.")
@click.option("--follow", is_flag=True, help="Go on with new events as they come, until the run ends or Ctrl-C.")
@json_option
def log(run: str, tail: int | None, follow: bool, as_json: bool) -> None:
    """Print RUN's events in their order: starts, evaluations, checkpoints that are kept, failures, logged files, ends.

    RUN is an id, a prefix of one, or a name. Metrics of single steps are left out; MLflow and `ditlab runs show` have
    them.
    """
    from ditlab.errors import UserError, first_line
    from ditlab.home import Home
    from ditlab.runs.events import EventReader
    from ditlab.tracking.records import find_run

    found = find_run(Home.from_environment(), run)
    if found.note:
        say(found.note)
    reader = EventReader(found.folder)
    try:
        events = reader.read_all()
        shown = events[-tail:] if tail else events
        for event in shown:
            _print(event, as_json)
        for event in reader.follow() if follow else ():
            shown.append(event)
            _print(event, as_json)
    except OSError as error:
        raise UserError(
            f"{found.folder.journal} cannot be read ({first_line(error)}); restore it from a copy."
        ) from error
    if not shown:
        say(f"run {found.record.run_id} has no events yet.")
    if reader.num_damaged:
        lines = "1 damaged line was" if reader.num_damaged == 1 else f"{reader.num_damaged} damaged lines were"
        say(f"{found.folder.journal}: {lines} passed over.")
    emit({"run_id": found.record.run_id, "events": [event.to_dict() for event in shown]}, as_json)


def _print(event: RunEvent, as_json: bool) -> None:
    from ditlab.cli.visible import shown_line

    print_line(f"{datetime.fromtimestamp(event.time / 1000):%Y-%m-%d %H:%M:%S}  {shown_line(event.text)}", as_json)
