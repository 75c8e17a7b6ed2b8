"""`ditlab ui` as a server of its own, asked by plain HTTP."""

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
from support.nodes import free_ports

NAME, PASSWORD = "ann", "correct-horse-battery"


def account(password: str = PASSWORD) -> dict[str, str]:
    """What a process must have in its environment to be let in."""
    return {"MLFLOW_TRACKING_USERNAME": NAME, "MLFLOW_TRACKING_PASSWORD": password}


class Served:
    """One running server."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid

    def status(self, path: str, login: str | None = None, method: str = "GET", **headers: str) -> int:
        """The HTTP status of a page; `login` is `name:password`."""
        return self.ask(path, login, method=method, **headers)[0]

    def ask(
        self, path: str, login: str | None = None, body: bytes | None = None, method: str | None = None, **headers: str
    ) -> tuple[int, bytes]:
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
        """Of all its processes, as `ps` shows them to everybody."""
        process = psutil.Process(self.pid)
        return "\n".join(" ".join(one.cmdline()) for one in [process, *process.children(recursive=True)])


@contextmanager
def served(home: Path, *options: str, log: Path | None = None, **environment: str) -> Iterator[Served]:
    """`ditlab ui OPTIONS` on a free port; ended by SIGTERM, which must succeed. `log` gets its standard error."""
    command = [sys.executable, "-m", "ditlab", "ui", "--port", str(free_ports(1)[0]), "--json", *options]
    variables = {**os.environ, "DITLAB_HOME": str(home), **environment}
    with open(log or os.devnull, "w") as errors:  # noqa: PTH123
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=variables, text=True)
    assert process.stdout
    try:
        line = process.stdout.readline()
        assert line, (process.wait(20), log and log.read_text())
        told = json.loads(line)
        yield Served(told["url"], told["pid"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(30)
        finally:
            process.kill()
            process.stdout.close()
    assert code == 0
