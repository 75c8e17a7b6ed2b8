"""Commands that show pages in a browser: `ditlab report`, `ditlab ui`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ditlab.cli import options, output
from ditlab.cli.terminal import PlainLines
from ditlab.errors import UserError
from ditlab.home import Home, resolve_user_path


@click.command()
@options.run
@click.option(
    "--out",
    metavar="FILE",
    type=options.NewPath(path_type=Path),
    help="Default: report.html in RUN's folder.",
)
@options.as_json
def report(run: str, out: Path | None, as_json: bool) -> None:
    """Write RUN's page: one HTML file with curves, samples, speed, failures, spec, parameters and
    data.

    RUN is an id, a prefix of one, or a name; for a sweep, the path of its own page is printed. The
    file needs no network, no server and no other file. Training writes it at the end
    (tracking.report).
    """
    from ditlab.api.pages import write_report

    home = Home.from_environment()
    found = options.find_noted(run)
    if found.record.is_group:
        from ditlab.tracking.records import find_training_run

        find_training_run(home, run)  # says which runs it has
    if found.record.trials:
        path = found.folder.path / "report" / "report.html"
        if not os.path.lexists(path):
            sweep = found.folder.run_id
            raise UserError(
                f"run '{sweep}' is a sweep without a page: a sweep writes it when it ends; "
                f"`ditlab tune --resume {sweep}` goes on with it, and `ditlab report` shows "
                "each of its trials."
            )
    else:
        path = write_report(home, found.folder, out)
    output.print_line(output.short_path(path), as_json)
    output.emit(
        {"run_id": found.record.run_id, "file": str(path), "bytes": path.stat().st_size}, as_json
    )
    is_live = not found.record.trials and found.record.status == "running"
    output.hint(as_json, "watch" if is_live else "runs show", found.record.run_id)


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
@click.option(
    "--home",
    "root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to serve instead of DITLAB_HOME.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    default=180.0,
    show_default="180",
    help="Longest wait for the server to answer; its start takes over a minute on a busy machine.",
)
@options.as_json
def ui(port: int, root: Path | None, wait: float, as_json: bool) -> None:
    """Serve the MLflow UI for DITLAB_HOME's runs, on this machine alone, until Ctrl-C."""
    from ditlab.tracking.server import MlflowServer

    home = (Home(resolve_user_path(root)) if root else Home.from_environment()).ensure()
    with MlflowServer(home, port) as server:
        waiting = (
            f"waiting up to {wait:g} s (--wait) for the MLflow server to answer at {server.url} ..."
        )
        with PlainLines(lambda: waiting):
            server.wait_until_ready(wait)
        output.print_line(
            f"{server.page} shows the runs under {home.root}; Ctrl-C ends it.", as_json
        )
        output.emit(
            {"url": server.url, "page": server.page, "home": str(home.root), "pid": server.pid},
            as_json,
        )
        server.wait()
