"""Commands that show pages in a browser: `ditlab report`, `ditlab watch`, `ditlab ui`."""

from __future__ import annotations

import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path

import click

from ditlab.cli import options, output
from ditlab.cli.terminal import PlainLines
from ditlab.errors import UserError
from ditlab.home import Home, resolve_user_path
from ditlab.parts import command_options, load_part

PORT = 8765
_ELSEWHERE = (
    "A run of another machine is watched there: ssh -t -L 8080:127.0.0.1:8080 HOST ditlab watch RUN --port 8080, then "
    "http://127.0.0.1:8080 here."
)


@click.command()
@options.run
@click.option(
    "--out", metavar="FILE", type=options.NewPath(path_type=Path), help="Default: report.html in RUN's folder."
)
@options.as_json
def report(run: str, out: Path | None, as_json: bool) -> None:
    """Write RUN's page: one HTML file with curves, samples, speed, failures, spec, parameters and data.

    RUN is an id, a prefix of one, or a name; for a sweep, the path of its own page is printed. The file needs no
    network, no server and no other file. Training writes it at the end (tracking.report).
    """
    from ditlab.api.pages import write_report

    home, found = Home.from_environment(), options.find_noted(run)
    if found.record.is_group:
        from ditlab.tracking.records import find_training_run

        find_training_run(home, run)  # says which runs it has
    if found.record.trials:
        path = found.folder.path / "report" / "report.html"
        if not os.path.lexists(path):
            sweep = found.folder.run_id
            raise UserError(
                f"run '{sweep}' is a sweep without a page: a sweep writes it when it ends; `ditlab tune --resume "
                f"{sweep}` goes on with it, and `ditlab report` shows each of its trials."
            )
    else:
        path = write_report(home, found.folder, out)
    output.print_line(output.short_path(path), as_json)
    output.emit({"run_id": found.record.run_id, "file": str(path), "bytes": path.stat().st_size}, as_json)
    is_live = not found.record.trials and found.record.status == "running"
    output.hint(as_json, "watch" if is_live else "runs show", found.record.run_id)


@click.command()
@options.run
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"Port on 127.0.0.1; 0: a free one. Default: {PORT}, if it is free."
)
@click.option(
    "--open/--no-open", "opens", default=None, help="Open the page in a browser (default: from a desktop's terminal)."
)
@options.added("watch")
@options.as_json
def watch(run: str, port: int | None, opens: bool | None, as_json: bool, **added: bool) -> None:
    """Show RUN's page live, on this machine, until Ctrl-C: curves, samples and events appear as the run makes them.

    RUN is an id, a prefix of one, or a name. It reads the run's folder in DITLAB_HOME and changes nothing. A run of
    a cluster is watched on the machine that holds its DITLAB_HOME, through a tunnel:

    \b
    ssh -t -L 8080:127.0.0.1:8080 HOST ditlab watch RUN --port 8080
    """
    from ditlab.runs.live_page import LivePage

    home = Home.from_environment()
    try:
        found = options.find_noted(run)
    except UserError as error:
        raise UserError(f"{error} {_ELSEWHERE}") from None
    if port is None:
        with socket.socket() as probe:
            port = PORT if probe.connect_ex(("127.0.0.1", PORT)) else 0
    if found.record.trials:
        kind, parts = ("group of seeds", "runs") if found.record.is_group else ("sweep", "trials")
        raise UserError(
            f"run '{found.folder.run_id}' is a {kind}; name one of its {parts}, which `ditlab runs show "
            f"{found.folder.run_id}` counts and `ditlab runs` lists."
        )
    for name, option in command_options("watch").items():
        if added[option.parameter]:
            load_part("option", name, option.target)(found.folder, output.say)
    with LivePage(home, found.folder, port, output.say) as page:
        shown = f"run {found.record.run_id} ({found.record.name})"
        output.print_line(f"{page.url} shows {shown} live; Ctrl-C ends it.", as_json)
        is_remote = bool(os.environ.get("SSH_CONNECTION"))
        if is_remote:
            output.say(
                f"on your own machine: ssh -L {page.server_port}:127.0.0.1:{page.server_port} {socket.gethostname()}"
            )
        output.emit({"url": page.url, "run_id": found.record.run_id, "pid": os.getpid()}, as_json)
        if opens is None:  # a person at a terminal of this machine, with a desktop
            has_desktop = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
            opens = bool(has_desktop) and sys.stdout.isatty() and not as_json and not is_remote
        if opens:
            threading.Thread(target=webbrowser.open, args=(page.url,), daemon=True).start()
        try:
            page.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            output.say("ended.")


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
@click.option(
    "--home", "root", type=click.Path(path_type=Path, file_okay=False), help="Folder to serve instead of DITLAB_HOME."
)
@click.option(
    "--wait", type=click.FloatRange(min=1), metavar="SECONDS", default=180.0, show_default="180",
    help="Longest wait for the server to answer; its start takes over a minute on a busy machine.",
)  # fmt: skip
@options.as_json
def ui(port: int, root: Path | None, wait: float, as_json: bool) -> None:
    """Serve the MLflow UI for DITLAB_HOME's runs, on this machine alone, until Ctrl-C."""
    from ditlab.tracking.server import MlflowServer

    home = (Home(resolve_user_path(root)) if root else Home.from_environment()).ensure()
    with MlflowServer(home, port) as server:
        waiting = f"waiting up to {wait:g} s (--wait) for the MLflow server to answer at {server.url} ..."
        with PlainLines(lambda: waiting):
            server.wait_until_ready(wait)
        output.print_line(f"{server.page} shows the runs under {home.root}; Ctrl-C ends it.", as_json)
        output.emit({"url": server.url, "page": server.page, "home": str(home.root), "pid": server.pid}, as_json)
        server.wait()
