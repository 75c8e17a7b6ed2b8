"""MLflow's server on a home folder, on loopback, as a child process, which alone imports mlflow."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

from ditlab.errors import RunFailed, UserError, cannot_write
from ditlab.home import Home
from ditlab.secrets import hide
from ditlab.tracking.access import (
    artifact_address,
    check_reachable,
    exempt_from_proxies,
    sqlite_address,
)
from ditlab.tracking.mlflow_connection import REFILL, database_damage, open_read_only
from ditlab.tracking.names import MODEL_TRAINING, experiment_page

HOST = "127.0.0.1"
_PROGRAM = Path(__file__).with_name("serve_mlflow.py")
_HOSTS = "localhost,localhost:*,127.0.0.1,127.0.0.1:*"
"""Host headers that it answers: tunnels end on any port of loopback, and no foreign name reaches
it.
"""
_STOP_TIMEOUT = 10.0  # seconds
_APP = "ditlab"
"""Name of `training_app` among the apps that MLflow finds."""
_CHOICE = (
    'const key="mlflow.workflowType_v1";'
    "try{localStorage.getItem(key)??localStorage.setItem(key,'\"machine_learning\"')}catch{}"
)
"""Script: the choice of a browser that has none yet."""
_FOREIGN = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_DEFAULT_ARTIFACT_ROOT",
    "MLFLOW_ARTIFACTS_ONLY",
    "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE",
)
"""Variables of a client, or of another server, which this one does not get."""


def training_app() -> Any:
    """MLflow's own app, whose pages begin with model training; the entry point `mlflow.app` of this
    package names it.

    MLflow 3.17 ignores an experiment's kind on a run's page: it shows what the browser chose last
    in the switch at the top left, and pages for language-model applications to one that never
    chose.
    """
    from flask import Response, request
    from mlflow.server import app as pages
    from mlflow.server.fastapi_app import app

    @pages.after_request
    def choose(answer: Response) -> Response:
        if request.path == "/" and answer.status_code == 200 and answer.mimetype == "text/html":
            answer.direct_passthrough = False
            answer.set_data(
                answer.get_data().replace(
                    b"<head>", f"<head><script>{_CHOICE}</script>".encode(), 1
                )
            )
        return answer

    return app


class MlflowServer:
    """A server that starts on entering the context and ends with it, also where that is
    KeyboardInterrupt.
    """

    def __init__(self, home: Home, port: int) -> None:
        """Check the port and the home. Raises UserError where that cannot be listened on, or this
        was moved.
        """
        self.home = home
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.log = home.root / f"mlflow-server-{port}.log"
        """The server's output; removed at an orderly end."""
        home.check_place()
        damage = database_damage(home.mlflow_database)
        if damage:
            raise UserError(f"{damage}; {REFILL}.")
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"--port {port} on {HOST} cannot be listened on ({error.strerror}); give "
                "another --port."
            ) from error
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def page(self) -> str:
        """The page to open in a browser: the newest run's experiment, else the list of
        experiments.
        """
        query = (
            "SELECT experiment_id FROM runs WHERE lifecycle_stage = 'active' ORDER BY "
            "start_time DESC LIMIT 1"
        )
        found = None
        with (
            suppress(OSError, sqlite3.Error),
            closing(open_read_only(self.home.mlflow_database)) as connection,
        ):
            found = connection.execute(query).fetchone()
        if not found:
            return f"{self.url}/#/experiments?{MODEL_TRAINING}"
        return f"{self.url}/{experiment_page(str(found[0]))}"

    @property
    def pid(self) -> int | None:
        """Process id of the server, once it was started."""
        return self._process.pid if self._process else None

    def __enter__(self) -> MlflowServer:
        exempt_from_proxies()
        environment = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            **os.environ,
        }
        environment["PYTHONSAFEPATH"] = "1"  # it starts in the home, whose files are no modules
        for name in _FOREIGN:
            environment.pop(name, None)
        environment["MLFLOW_BACKEND_STORE_URI"] = sqlite_address(self.home.mlflow_database)
        # read as the program imports MLflow, before its options
        environment["MLFLOW_SERVER_ALLOWED_HOSTS"] = _HOSTS
        # A session of its own: Ctrl-C reaches this process alone, which then ends the server and
        # its workers in order. The home as working directory: what MLflow drops beside itself stays
        # there.
        with self._open_log() as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.home.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def _open_log(self) -> IO[bytes]:
        try:
            return self.log.open("wb")
        except OSError as error:
            raise cannot_write(self.log, error, "remove it") from None

    def _command(self) -> list[str]:
        artifacts = artifact_address(self.home.artifacts)
        command = [
            sys.executable,
            str(_PROGRAM),
            "--host",
            HOST,
            "--port",
            str(self.port),
            "--workers",
            "1",
            "--artifacts-destination",
            artifacts,
            "--default-artifact-root",
            artifacts,
            # a line a request would fill the disk of a server that runs for months
            "--uvicorn-opts=--no-access-log",
        ]
        if importlib.metadata.entry_points(group="mlflow.app", name=_APP):
            command += ["--app-name", _APP]
        return command

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """End the server; an interruption is the ordinary end, and is not raised again."""
        assert self._process is not None
        for stop in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            os.killpg(self._process.pid, stop)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT)
        is_interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if kind is None or is_interrupted:
            self.log.unlink(missing_ok=True)
        return is_interrupted

    def wait_until_ready(self, timeout: float) -> None:
        """Wait for an answer, mostly MLflow's imports. Raises RunFailed for none."""
        assert self._process is not None
        deadline = time.monotonic() + timeout
        while check_reachable(self.url, 1.0) is not None:
            if self._process.poll() is not None:
                raise RunFailed(
                    f"the MLflow server ended with code {self._process.returncode}; "
                    f"{self._last_words()}"
                )
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"the MLflow server did not answer at {self.url} within {timeout:g} s; "
                    f"{self._last_words()}; --wait SECONDS gives it more time."
                )
            time.sleep(0.2)

    def wait(self) -> None:
        """Wait until the server ends. Raises RunFailed where it ends by itself with an error."""
        assert self._process is not None
        code = self._process.wait()
        if code:
            raise RunFailed(f"the MLflow server ended with code {code}; {self._last_words()}")

    def _last_words(self) -> str:
        """Where the server's log is, and its last line."""
        try:
            lines = self.log.read_bytes().decode(errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it is empty")
        return f"its log is {self.log}: {hide(last)[:300]}"
