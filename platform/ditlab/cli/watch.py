"""`ditlab watch`."""

import os
import signal
import socket
import sys
import threading
import webbrowser
from types import FrameType

import click

from ditlab.cli.common import emit, json_option, print_line, run_argument, say

PORT = 8765


@click.command()
@run_argument
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"Port on 127.0.0.1; 0: a free one. Default: {PORT}, if it is free."
)
@click.option(
    "--open/--no-open", "opens", default=None, help="Open the page in a browser (default: where a person looks on)."
)
@json_option
def watch(run: str, port: int | None, opens: bool | None, as_json: bool) -> None:
    """Show RUN's page live, on this machine, until Ctrl-C: curves, samples and events appear as the run makes them.

    RUN is an id, a prefix of one, or a name. It reads the run's folder in DITLAB_HOME and changes nothing. A run of
    a cluster is watched on the machine that holds its DITLAB_HOME, through a tunnel:

    \b
    ssh -t -L 8080:127.0.0.1:8080 HOST ditlab watch RUN --port 8080
    """
    from ditlab.errors import UserError
    from ditlab.home import Home
    from ditlab.interface.pages import find_report, serve_page

    home = Home.from_environment()
    try:
        found = find_report(run, home)
    except UserError as error:
        raise UserError(f"{error} {_ELSEWHERE}") from None
    if found.note:
        say(found.note)
    with serve_page(found, home, _free(PORT) if port is None else port, say) as page:
        print_line(f"{page.url} shows run {found.record.run_id} ({found.record.name}) live; Ctrl-C ends it.", as_json)
        if os.environ.get("SSH_CONNECTION"):
            say(f"on your own machine: ssh -L {page.port}:127.0.0.1:{page.port} {socket.gethostname()}")
        emit({"url": page.url, "run_id": found.record.run_id, "pid": os.getpid()}, as_json)
        if opens or (opens is None and _is_watched(as_json)):
            threading.Thread(target=webbrowser.open, args=(page.url,), daemon=True).start()
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            page.serve()
        except KeyboardInterrupt:
            say("ended.")
        finally:
            signal.signal(signal.SIGTERM, before)


_ELSEWHERE = (
    "A run of another machine is watched there: ssh -t -L 8080:127.0.0.1:8080 HOST ditlab watch RUN --port 8080, then "
    "http://127.0.0.1:8080 here."
)


def _free(port: int) -> int:
    """Return a port of loopback if it is free, else 0."""
    with socket.socket() as probe:
        return port if probe.connect_ex(("127.0.0.1", port)) else 0


def _is_watched(as_json: bool) -> bool:
    """Return True if a person sits at a terminal of this machine, with a desktop."""
    has_desktop = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return not as_json and sys.stdout.isatty() and has_desktop and not os.environ.get("SSH_CONNECTION")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
