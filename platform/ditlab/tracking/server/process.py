"""MLflow's own server and UI on a home folder, as a child process. Imports no mlflow here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.tracking.address import check_reachable, resolve_tracking_uri
from ditlab.tracking.server.accounts import NAME, PASSWORD, Administrator
from ditlab.tracking.server.hosts import allowed_hosts, is_loopback

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class ServerOptions:
    """Who reaches the server, and where it keeps what it is sent."""

    administrator: Administrator | None = None
    """None: whoever reaches it may do everything."""
    hosts: Sequence[str] = ()
    """Further names under which it answers."""
    database: str | None = None
    """None: DITLAB_HOME's. May hold a password: it goes by the environment, which other users cannot see."""
    artifacts: str | None = None
    """A folder or URI; None: DITLAB_HOME's."""

    @property
    def serves_artifacts(self) -> bool:
        """Whether clients send artifacts by HTTP: they may be on other machines, without keys to the storage."""
        return bool(self.administrator or self.database or self.artifacts)


class MlflowServer:
    """Starts on entering the context, ends with it; SIGTERM to this process ends it as Ctrl-C does."""

    def __init__(self, home: Home, host: str = "127.0.0.1", port: int = 5000, doors: ServerOptions | None = None) -> None:
        """Raises UserError where the port cannot be listened on."""
        self.home, self.host, self.port, self.doors = home, host, port, doors or ServerOptions()
        self._hosts = allowed_hosts(self.doors.hosts, host, port)
        _check_free(host, port)
        self._process: subprocess.Popen[bytes] | None = None
        self._previous: object = None

    @property
    def url(self) -> str:
        """Where it answers on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    @property
    def page(self) -> str:
        """What to open in a browser: without the parameter MLflow shows its pages for language-model applications."""
        return f"{self.url}/#/experiments?workflowType=machine_learning"

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def __enter__(self) -> MlflowServer:
        environment = self._environment()
        # A session of its own: Ctrl-C reaches this process alone, which then ends the server and its workers in order.
        # The home as working directory: what MLflow drops beside itself stays there.
        self._process = subprocess.Popen(
            self._command(),
            cwd=self.home.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
        )
        self._previous = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def _command(self) -> list[str]:
        """Other users of the machine see it: it holds no secret."""
        command = [
            sys.executable, "-m", "mlflow", "server",
            "--artifacts-destination", self.doors.artifacts or str(self.home.artifacts),
            "--host", self.host, "--port", str(self.port), "--workers", "1",
            "--allowed-hosts", ",".join(self._hosts),
        ]  # fmt: skip
        if self.doors.administrator:
            command += ["--app-name", "basic-auth"]
        if self.doors.serves_artifacts:
            return [*command, "--serve-artifacts"]
        return [*command, "--default-artifact-root", str(self.home.artifacts)]

    def _environment(self) -> dict[str, str]:
        settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
        for name in ("MLFLOW_TRACKING_URI", NAME, PASSWORD, "MLFLOW_DEFAULT_ARTIFACT_ROOT", "MLFLOW_ARTIFACTS_ONLY",
                     "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE"):  # fmt: skip
            settings.pop(name, None)  # a client's, or what would open another door
        settings["MLFLOW_BACKEND_STORE_URI"] = resolve_tracking_uri(self.doors.database, self.home)
        if self.doors.administrator:
            settings |= self.doors.administrator.settings(self.home, os.environ)
        return settings

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Ends the server; an interruption is the ordinary end and goes no further."""
        signal.signal(signal.SIGTERM, self._previous)  # type: ignore[arg-type]
        assert self._process is not None
        for stop in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            os.killpg(self._process.pid, stop)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        return kind is KeyboardInterrupt

    def wait_until_it_answers(self) -> None:
        """Raises RunFailed when it ends first, or does not answer within a minute; UserError for a password that is
        not the administrator's."""
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while check_reachable(self.url, 1.0) is not None:
            if self._process.poll() is not None:
                raise RunFailed(f"the MLflow server ended with code {self._process.returncode}; its log is above.")
            if time.monotonic() > deadline:
                raise RunFailed(f"the MLflow server did not answer at {self.url} within {_START_SECONDS:.0f} s.")
            time.sleep(0.2)
        if self.doors.administrator:
            self.doors.administrator.check_known_to(self.url)

    def wait(self) -> None:
        """Returns when the server ends. Raises RunFailed when it ends by itself with an error."""
        assert self._process is not None
        if code := self._process.wait():
            raise RunFailed(f"the MLflow server ended with code {code}; its log is above.")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check_free(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise UserError(f"--host {host} is no address of this machine ({error.strerror}).") from error
    except OSError as error:
        raise UserError(
            f"--port {port} on {host} cannot be listened on ({error.strerror}); give another --port."
        ) from error
