"""MLflow's own server and UI on a home folder, as a child process. Imports no mlflow here."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.tracking.address import check_reachable, resolve_tracking_uri

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


class UiServer:
    """Starts on entering the context, ends with it; SIGTERM to this process ends it as Ctrl-C does."""

    def __init__(self, home: Home, host: str = "127.0.0.1", port: int = 5000) -> None:
        """Raises UserError where the port cannot be listened on."""
        self.home, self.host, self.port = home, host, port
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
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def __enter__(self) -> UiServer:
        command = [
            sys.executable, "-m", "mlflow", "server",
            "--backend-store-uri", resolve_tracking_uri(None, self.home),
            "--default-artifact-root", str(self.home.artifacts),
            "--artifacts-destination", str(self.home.artifacts),
            "--host", self.host, "--port", str(self.port), "--workers", "1",
        ]  # fmt: skip
        settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        # A session of its own: Ctrl-C reaches this process alone, which then ends the server and its workers in order.
        # The home as working directory: what MLflow drops beside itself stays there.
        self._process = subprocess.Popen(
            command,
            cwd=self.home.root,
            env={**settings, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
        )
        self._previous = signal.signal(signal.SIGTERM, _interrupt)
        return self

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
        """Raises RunFailed when it ends first, or does not answer within a minute."""
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while check_reachable(self.url, 1.0) is not None:
            if self._process.poll() is not None:
                raise RunFailed(f"the MLflow server ended with code {self._process.returncode}; its log is above.")
            if time.monotonic() > deadline:
                raise RunFailed(f"the MLflow server did not answer at {self.url} within {_START_SECONDS:.0f} s.")
            time.sleep(0.2)

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
