"""`ditlab ui`, and `mlflow server` with accounts, in processes of their own, and requests to them
by plain HTTP.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from ditlab.tracking.access import check_reachable
from support.clusters.nodes import free_ports

NAME, PASSWORD = "ann", "correct-horse-battery"


def account(password: str = PASSWORD) -> dict[str, str]:
    """Environment variables of a process with an account."""
    return {"MLFLOW_TRACKING_USERNAME": NAME, "MLFLOW_TRACKING_PASSWORD": password}


class Served:
    """One running server."""

    def __init__(self, url: str, pid: int, page: str) -> None:
        self.url, self.pid, self.page = url, pid, page

    def status(
        self, path: str, login: str | None = None, method: str = "GET", **headers: str
    ) -> int:
        """HTTP status of a request for a page; `login` is `name:password`."""
        return self.ask(path, login, method=method, **headers)[0]

    def ask(
        self,
        path: str,
        login: str | None = None,
        body: bytes | None = None,
        method: str | None = None,
        **headers: str,
    ) -> tuple[int, bytes]:
        """HTTP status and content of the answer to a request."""
        if login:
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def command_lines(self) -> str:
        """Command lines of all its processes, as `ps` shows them to every user."""
        process = psutil.Process(self.pid)
        return "\n".join(
            " ".join(one.cmdline()) for one in [process, *process.children(recursive=True)]
        )


@contextmanager
def served(
    home: Path,
    *options: str,
    log: Path | None = None,
    end: signal.Signals = signal.SIGTERM,
    **environment: str,
) -> Iterator[Served]:
    """Run `ditlab ui OPTIONS` on a free port, and end it by the signal `end`, after which its exit
    code must be 0.

    `log` gets its standard error; without it, a file beside the home does. A failure is raised with
    that log.
    """
    log = log or home.with_name(f"{home.name}.log")
    command = [
        sys.executable,
        "-m",
        "ditlab",
        "ui",
        "--port",
        str(free_ports(1)[0]),
        "--json",
        *options,
    ]
    variables = {**os.environ, "DITLAB_HOME": str(home), **environment}
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=variables, text=True
        )
    assert process.stdout
    try:
        line = process.stdout.readline()
        assert line, f"ended with {process.wait(20)} before it answered: {log.read_text()}"
        told = json.loads(line)
        yield Served(told["url"], told["pid"], told["page"])
        process.send_signal(end)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.stdout.close()


@contextmanager
def guarded(home: Path, log: Path, account: Mapping[str, str]) -> Iterator[Served]:
    """Run MLflow's own server with accounts, as docs/security.md does; its administrator's are
    `account`'s.
    """
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "access.ini"
    settings.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{home}/users.db\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    port = free_ports(1)[0]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--app-name",
        "basic-auth",
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        f"sqlite:///{home}/mlflow.db",
        "--artifacts-destination",
        str(home / "artifacts"),
    ]
    variables = {
        **os.environ,
        "MLFLOW_AUTH_CONFIG_PATH": str(settings),
        "MLFLOW_AUTH_ADMIN_USERNAME": account["MLFLOW_TRACKING_USERNAME"],
        "MLFLOW_AUTH_ADMIN_PASSWORD": account["MLFLOW_TRACKING_PASSWORD"],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a key for the forms of tests",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=home, stdout=output, stderr=output, env=variables, start_new_session=True
        )
    try:
        while check_reachable(url, 1.0) is not None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield Served(url, process.pid, url)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
