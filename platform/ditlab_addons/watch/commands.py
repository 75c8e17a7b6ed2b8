"""`ditlab watch`."""

from __future__ import annotations

import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.parts import command_options, load_part

if TYPE_CHECKING:
    from ditlab.tracking.records import FoundRun
    from ditlab_addons.watch.live_page import PageServer

PORT = 8765
_ELSEWHERE = (
    "A run of another machine is watched there: ssh -t -L 8080:127.0.0.1:8080 HOST ditlab "
    "watch RUN --port 8080, then http://127.0.0.1:8080 here."
)


class WatchOutput(TypedDict):
    url: str
    run_id: str | None
    """None for a file's page."""
    pid: int


RESULTS = {"watch": WatchOutput}


@click.command()
@click.argument("run", metavar="RUN|FILE")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Port on 127.0.0.1; 0: a free one. Default: {PORT}, if it is free.",
)
@click.option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open the page in a browser (default: from a desktop's terminal).",
)
@options.added("watch")
@options.as_json
def watch(run: str, port: int | None, opens: bool | None, as_json: bool, **added: bool) -> None:
    """Show RUN's page live, on this machine, until Ctrl-C: curves, samples and events appear as the
    run makes them.

    RUN is an id, a prefix of one, or a name; FILE a graph of steps. It reads DITLAB_HOME and
    changes nothing. A run of a cluster is watched on the machine that holds its DITLAB_HOME,
    through a tunnel:

    \b
    ssh -t -L 8080:127.0.0.1:8080 HOST ditlab watch RUN --port 8080
    """
    home = Home.from_environment()
    file = Path(run)
    if file.suffix in (".yaml", ".yml") and file.is_file():
        server = _file_server(home, file, port, added)
        shown = str(file)
    else:
        server, shown = _run_server(home, run, port, added)
    with server as page:
        output.print_line(f"{page.url} shows {shown} live; Ctrl-C ends it.", as_json)
        is_remote = bool(os.environ.get("SSH_CONNECTION"))
        if is_remote:
            output.say(
                f"on your own machine: ssh -L {page.server_port}:127.0.0.1:{page.server_port} "
                f"{socket.gethostname()}"
            )
        output.emit({"url": page.url, "run_id": page.run_id, "pid": os.getpid()}, as_json)
        if opens is None:
            opens = not as_json and not is_remote and _is_at_desktop()
        if opens:
            threading.Thread(target=webbrowser.open, args=(page.url,), daemon=True).start()
        try:
            page.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            output.say("ended.")


def _run_server(
    home: Home, run: str, port: int | None, added: dict[str, bool]
) -> tuple[PageServer, str]:
    """Return the server of a run's page, and the run in words. Raises UserError for a run that has
    none.
    """
    from ditlab_addons.watch.live_page import LivePage

    try:
        found = options.find_noted(run)
    except UserError as error:
        raise UserError(f"{error} {_ELSEWHERE}") from None
    _refuse_sweep(found)
    for name, option in command_options("watch").items():
        if added[option.parameter]:
            load_part("option", name, option.target)(found.folder, output.say)
    record = found.record
    server = LivePage(home, found.folder, _free_port(port), output.say)
    return server, f"run {record.run_id} ({record.name})"


def _file_server(home: Home, file: Path, port: int | None, added: dict[str, bool]) -> PageServer:
    """Return the server of a file's page. Raises UserError for a file that has none, and for flags
    that are of runs alone.
    """
    from ditlab.api.specs import kind_of_file
    from ditlab_addons.watch.live_page import LiveFilePage

    for name, option in command_options("watch").items():
        if added[option.parameter]:
            raise UserError(f"{name} is for runs, and {file} is a file; leave it out.")
    kind = kind_of_file(file)
    target = getattr(kind, "page", "")
    if kind is None or not target:
        raise UserError(f"{file} is no graph of steps; name a run that was made of it.")
    make = load_part("kind of files", kind.name, target)(home, file)
    return LiveFilePage(make, _free_port(port), output.say)


def _refuse_sweep(found: FoundRun) -> None:
    """Raise UserError for a run that has no page of its own: a sweep, or a group of seeds."""
    if not found.record.trials:
        return
    kind = "sweep"
    parts = "trials"
    if found.record.is_group:
        kind = "group of seeds"
        parts = "runs"
    raise UserError(
        f"run '{found.folder.run_id}' is a {kind}; name one of its {parts}, which `ditlab "
        f"runs show {found.folder.run_id}` counts and `ditlab runs` lists."
    )


def _free_port(port: int | None) -> int:
    """Return the port that was asked for; for None `PORT`, or 0 if another process has it."""
    if port is not None:
        return port
    with socket.socket() as probe:
        is_free = probe.connect_ex(("127.0.0.1", PORT)) != 0
    return PORT if is_free else 0


def _is_at_desktop() -> bool:
    """Return True if a person reads this terminal on a machine with a desktop."""
    has_desktop = (
        sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return bool(has_desktop) and sys.stdout.isatty()
