"""`ditlab ui`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, say


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on; there is no password.")
@click.option("--home", "root", type=click.Path(path_type=Path, file_okay=False), help="Instead of DITLAB_HOME.")
@json_option
def ui(port: int, host: str, root: Path | None, as_json: bool) -> None:
    """Open the MLflow UI on DITLAB_HOME's runs, until Ctrl-C."""
    from ditlab.home import Home
    from ditlab.tracking.server import UiServer

    home = (Home(root.expanduser().resolve()) if root else Home.from_environment()).ensure()
    with UiServer(home, host, port) as server:
        if not server.is_private:
            say(f"host={host}: whoever reaches port {port} of this machine can read and delete every run.")
        server.wait_until_it_answers()
        click.echo(f"{server.page} shows the runs under {home.root}; Ctrl-C ends it.", err=as_json)
        emit({"url": server.url, "page": server.page, "home": str(home.root), "pid": server.pid}, as_json)
        server.wait()
