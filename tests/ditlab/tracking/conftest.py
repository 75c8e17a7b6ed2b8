"""A home folder for each test, and a real MLflow server on loopback for all that need one."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ditlab.home import Home, RunFolder
from ditlab.tracking import server as tracking_server
from ditlab.tracking.access import check_reachable
from ditlab.tracking.records import create_run
from support import databases


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A DITLAB_HOME that holds no run."""
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    return Home.from_environment().ensure()


@pytest.fixture
def store(home: Home, mlflow_template: Path) -> None:
    """Give the home a database without runs."""
    databases.seed(home.root, mlflow_template)


@pytest.fixture
def new_run(home: Home) -> Callable[..., RunFolder]:
    """`new_run(name)` makes a run in the home."""

    def make(name: str = "digits-dit", **changes: Any) -> RunFolder:
        return create_run(
            home, name, **{"family": "dit", "spec_hash": "abc", "total_steps": 600, **changes}
        )

    return make


class Server:
    """`mlflow server` in one process, started on demand at an address that is chosen before."""

    def __init__(self, root: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server unless it runs; returns when it answers."""
        if self._process is not None:
            return
        command = [
            sys.executable,
            str(tracking_server._PROGRAM),
            "--workers",
            "1",
            "--port",
            str(self.port),
            "--backend-store-uri",
            f"sqlite:///{self._root}/server.db",
            "--artifacts-destination",
            str(self._root / "artifacts"),
        ]
        with (self._root / "server.log").open("wb") as log:
            environment = {
                **os.environ,
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            }
            self._process = subprocess.Popen(
                command,
                cwd=self._root,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 180
        while check_reachable(self.uri, 1) is not None:
            assert time.monotonic() < deadline, (self._root / "server.log").read_text()
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the server; `start` brings it back at the same address, with its database."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait(20)
        self._process = None

    def stop(self) -> None:
        """End the server in order, if it runs."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Iterator[Server]:
    """A server for all tests, which the first test that needs an answer starts."""
    root = tmp_path_factory.mktemp("server")
    shutil.copyfile(mlflow_template, root / "server.db")
    server = Server(root)
    yield server
    server.stop()


@pytest.fixture
def own_server() -> Iterator[Callable[[Path], Server]]:
    """`own_server(root)`: a server of one test, with its database under `root`, killed at the
    end.
    """
    made: list[Server] = []

    def make(root: Path) -> Server:
        made.append(Server(root))
        return made[-1]

    yield make
    for server in made:
        server.stop()
