"""A home folder for each test, and a real MLflow server on loopback for all that need one."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from ditlab.home import Home
from ditlab.tracking import server as tracking_server
from ditlab.tracking.access import check_reachable
from ditlab.tracking.records import create_run
from ditlab.tracking.tracker import RunTracker
from support import databases
from support.clusters.faults import wait_until
from support.clusters.nodes import free_ports


@pytest.fixture
def home(home):
    """A DITLAB_HOME that holds no run."""
    return Home(home).ensure()


@pytest.fixture
def store(home, mlflow_template):
    """Give the home a database without runs."""
    databases.seed(home.root, mlflow_template)


@pytest.fixture
def new_run(home):
    """`new_run(name)` makes a run in the home."""

    def make(name="digits-dit", **changes):
        facts = {"family": "dit", "spec_hash": "abc", "total_steps": 600}
        return create_run(home, name, **facts | changes)

    return make


@pytest.fixture
def tracked(home):
    """`tracked(folder, uri=None, **start)`: a run that has started, with its warnings in `said`."""

    def begin(folder, uri=None, **start):
        said = []
        tracker = RunTracker(folder, uri, home, warn=said.append)
        tracker.said = said
        tracker.start("digits-dit", "digits", "dit", **start)
        return tracker

    return begin


class Server:
    """`mlflow server` in one process, started on demand at an address that is chosen before."""

    def __init__(self, root):
        (self.port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{self.port}"
        self._root = root
        self._process = None

    def start(self):
        """Start the server unless it runs; returns when it answers."""
        if self._process is not None:
            return
        root = self._root
        options = {
            "workers": 1,
            "port": self.port,
            "backend-store-uri": f"sqlite:///{root}/server.db",
            "artifacts-destination": root / "artifacts",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        off = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        log = root / "server.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(tracking_server._PROGRAM), *words],
                cwd=root,
                env={**os.environ, **off},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        wait_until(lambda: check_reachable(self.uri, 1) is None, 180, "the server's answer")

    def signal(self, number):
        """Send a signal to all its processes."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self):
        """Kill the server; `start` brings it back at the same address, with its database."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait(20)
        self._process = None

    def stop(self):
        """End the server in order, if it runs."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None


@pytest.fixture(scope="session")
def server(tmp_path_factory, mlflow_template):
    """A server for all tests, which the first test that needs an answer starts."""
    root = tmp_path_factory.mktemp("server")
    shutil.copyfile(mlflow_template, root / "server.db")
    server = Server(root)
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path):
    """A server of one test, with its database in `disk`."""
    server = Server(tmp_path / "disk")
    yield server
    server.stop()
