"""`ditlab report`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ditlab.cli.common import delivery_text, emit, json_option, print_line, run_argument, say
from ditlab.cli.hints import hint, short_path

if TYPE_CHECKING:
    from ditlab.home import Home
    from ditlab.tracking.records import FoundRun


@click.command()
@run_argument
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Default: report.html in RUN's folder.")
@click.option("--log", is_flag=True, help="Add the page to the run, as an artifact in MLflow.")
@json_option
def report(run: str, out: Path | None, log: bool, as_json: bool) -> None:
    """Write RUN's page: one HTML file with curves, samples, speed, failures, spec, parameters and data.

    RUN is an id, a prefix of one, or a name; of a sweep, the page that it wrote is named. The file needs no network,
    no server and no other file. A training writes it at its end (tracking.report).
    """
    from ditlab.home import Home
    from ditlab.interface.pages import find_report, sweep_report, write_report

    home = Home.from_environment()
    found = find_report(run, home)
    if found.note:
        say(found.note)
    if found.record.trials:
        path = sweep_report(found)
    else:
        path = write_report(home, found.folder, out)
        if log:
            _log(home, found, path)
    print_line(short_path(path), as_json)
    emit({"run_id": found.record.run_id, "file": str(path), "bytes": path.stat().st_size}, as_json)
    if found.record.trials or found.record.status != "running":
        hint(as_json, "runs", "show", found.record.run_id)
    else:
        hint(as_json, "watch", found.record.run_id)


def _log(home: "Home", found: "FoundRun", path: Path) -> None:
    """Add the page to the run as an artifact, and say where it is."""
    from ditlab.cli.progress_bars import ProgressBars
    from ditlab.interface.pages import log_report

    with ProgressBars("sending the page to MLflow") as progress:
        num_unsent = log_report(home, found.folder, path, progress.say)
    say(delivery_text("the page is", found.record.run_id, num_unsent))
