"""`ditlab ui`: the MLflow server on a home."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, print_line, say


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Interface to listen on; one beyond loopback needs --auth."
)
@click.option(
    "--home", "root", type=click.Path(path_type=Path, file_okay=False), help="Folder to serve instead of DITLAB_HOME."
)
@click.option(
    "--auth/--no-auth", default=None, help="Require a name and password; the administrator's are "
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. --no-auth gives everyone who reaches it full access."
)  # fmt: skip
@click.option(
    "--allowed-hosts", multiple=True, metavar="NAME[:PORT],...", envvar="MLFLOW_SERVER_ALLOWED_HOSTS",
    help="Further host names that requests may use, beside loopback and --host.",
)  # fmt: skip
@click.option(
    "--database", metavar="URI", envvar="MLFLOW_BACKEND_STORE_URI", show_envvar=True,
    help="postgresql://USER@HOST/DATABASE, sqlite:///FILE; default: DITLAB_HOME's. A password only in the variable.",
)  # fmt: skip
@click.option(
    "--artifacts", metavar="URI", help="s3://BUCKET/PATH or a folder, to which clients send files through this server; "
    "default: DITLAB_HOME's."
)  # fmt: skip
@click.option(
    "--wait", type=click.FloatRange(min=1), metavar="SECONDS", default=180.0, show_default="180",
    help="Longest wait for the server to answer; its start takes over a minute on a busy machine.",
)  # fmt: skip
@json_option
@click.pass_context
def ui(
    ctx: click.Context,
    port: int,
    host: str,
    root: Path | None,
    auth: bool | None,
    allowed_hosts: tuple[str, ...],
    database: str | None,
    artifacts: str | None,
    wait: float,
    as_json: bool,
) -> None:
    """Serve the MLflow UI for DITLAB_HOME's runs, on this machine or to others, until Ctrl-C."""
    from click.core import ParameterSource

    from ditlab.cli.plain_lines import waiting_lines
    from ditlab.errors import UserError
    from ditlab.home import Home, followed
    from ditlab.tracking.server import MlflowServer, ServerOptions, artifact_location, database_address, is_loopback
    from ditlab.tracking.server_accounts import Administrator

    if auth is None and not is_loopback(host):
        raise UserError(
            f"--host {host} lets other machines read and delete every run; add --auth, or --no-auth to open it to all."
        )
    administrator = Administrator.from_environment() if auth else None
    typed = ctx.get_parameter_source("database") == ParameterSource.COMMANDLINE
    database = database_address(database, typed) if database else None
    options = ServerOptions(administrator, allowed_hosts, database, artifact_location(artifacts) if artifacts else None)
    home = (Home(followed(root)) if root else Home.from_environment()).ensure()
    with MlflowServer(home, host, port, options) as server:
        if not server.is_private and not administrator:
            say(f"host={host}: everyone who reaches port {port} of this machine can read and delete every run.")
        if host in ("0.0.0.0", "::") and not allowed_hosts:
            say(f"host={host} accepts only loopback's host names; add others with --allowed-hosts.")
        with waiting_lines(f"waiting up to {wait:g} s (--wait) for the MLflow server to answer at {server.url}"):
            server.wait_until_ready(wait)
        page = server.page
        print_line(f"{page} shows the runs under {home.root}; Ctrl-C ends it.", as_json)
        emit({"url": server.url, "page": page, "home": str(home.root), "pid": server.pid}, as_json)
        server.wait()
