"""`ditlab ui` as a server in a process of its own, and requests to it by plain HTTP."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from ditlab.tracking.access import basic_authorization
from support.clusters.nodes import free_ports

NAME, PASSWORD = "ann", "correct-horse-battery"


def account(password: str = PASSWORD) -> dict[str, str]:
    """Environment variables of a process with an account."""
    return {"MLFLOW_TRACKING_USERNAME": NAME, "MLFLOW_TRACKING_PASSWORD": password}


class Served:
    """One running server."""

    def __init__(self, url: str, pid: int, page: str) -> None:
        self.url, self.pid, self.page = url, pid, page

    def status(self, path: str, login: str | None = None, method: str = "GET", **headers: str) -> int:
        """HTTP status of a request for a page; `login` is `name:password`."""
        return self.ask(path, login, method=method, **headers)[0]

    def ask(
        self, path: str, login: str | None = None, body: bytes | None = None, method: str | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """HTTP status and content of the answer to a request."""
        if login:
            headers["Authorization"] = basic_authorization(*login.split(":", 1))
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
        return "\n".join(" ".join(one.cmdline()) for one in [process, *process.children(recursive=True)])


@contextmanager
def served(
    home: Path, *options: str, log: Path | None = None, end: signal.Signals = signal.SIGTERM, **environment: str
) -> Iterator[Served]:
    """Run `ditlab ui OPTIONS` on a free port, and end it by the signal `end`, after which its exit code must be 0.

    `log` gets its standard error; without it, a file beside the home does. A failure is raised with that log.
    """
    log = log or home.with_name(f"{home.name}.log")
    command = [sys.executable, "-m", "ditlab", "ui", "--port", str(free_ports(1)[0]), "--json", *options]
    variables = {**os.environ, "DITLAB_HOME": str(home), **environment}
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=variables, text=True)
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
