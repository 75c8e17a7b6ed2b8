"""MLflow's own server and UI on a home folder, as a child process, with its hosts and its storage. Imports no mlflow.

Allowed Host headers prevent DNS rebinding. The page at which a reviewer begins is the experiment of the newest run.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from ditlab.errors import RunFailed, UserError, first_line
from ditlab.home import Home, resolve_user_path
from ditlab.secrets import hide, hide_in_urls
from ditlab.spec.uris import refuse_secret
from ditlab.storage.plain_files import MIB, open_for_append, parse_json, read_plain
from ditlab.tracking.access import basic_authorization, check_reachable, resolve_tracking_uri, validate_tracking_uri
from ditlab.tracking.database_damage import check_database
from ditlab.tracking.mlflow_runs import VIEW_TAG, view_value
from ditlab.tracking.names import MODEL_TRAINING, experiment_page
from ditlab.tracking.relocation import check_place, record_place
from ditlab.tracking.server_accounts import NAME, PASSWORD, Administrator, check_auth_packages

_log = logging.getLogger("ditlab.tracking")
_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

START_TIMEOUT = 180.0
"""Seconds that a server may take to start: MLflow's imports take 6 s, and over a minute where other work has every
core."""
_STOP_TIMEOUT = 10.0  # seconds
_LONGEST_LOG = 256 * MIB
_MOST_EXPERIMENTS = 1000
_TIMEOUT = 20.0
"""Seconds for an answer of a server that has just started."""
_ALL_INTERFACES = ("0.0.0.0", "::")
# Tunnels end on any port of loopback, and no foreign name reaches it. MLflow compares with fnmatch, so `[` is escaped.
_LOOPBACK = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]:*", "[::1]")
# SQLAlchemy's driver, and its package, for a scheme without +DRIVER.
_DRIVERS = {"postgresql": ("psycopg2", "psycopg2-binary"), "mysql": ("MySQLdb", "mysqlclient"),
            "mssql": ("pyodbc", "pyodbc")}  # fmt: skip
_LIBRARIES = {"s3": "boto3", "gs": "google.cloud.storage", "wasbs": "azure.storage.blob"}


@dataclass(frozen=True)
class ServerOptions:
    """Access to the server, and its storage."""

    administrator: Administrator | None = None
    """Account that requests are checked against; without it, everyone who reaches the server may do everything."""
    hosts: Sequence[str] = ()
    """Further Host headers that it answers, beside loopback and its own interface."""
    database: str | None = None
    """URI; None: DITLAB_HOME's. It may hold a password, and is passed by the environment: other users cannot see it."""
    artifacts: str | None = None
    """A folder or URI; None: DITLAB_HOME's."""

    @property
    def serves_artifacts(self) -> bool:
        """True if clients send artifacts by HTTP: they may be on other machines, without keys to the storage."""
        return bool(self.administrator or self.database or self.artifacts)


class MlflowServer:
    """A server that starts on entering the context and ends with it; SIGTERM to this process ends it as Ctrl-C does."""

    def __init__(self, home: Home, host: str, port: int, options: ServerOptions) -> None:
        """Check the port and the home. Raises UserError where that cannot be listened on, or this was moved."""
        self.home, self.host, self.port, self.options = home, host, port, options
        if options.database is None:
            check_place(home)
            record_place(home)
            if damage := check_database(home.mlflow_database):
                _log.warning(damage.rstrip("."))
        if options.administrator:
            check_auth_packages()
        self._hosts = allowed_hosts(self.options.hosts, host, port)
        _check_free(host, port)
        self._process: subprocess.Popen[bytes] | None = None
        self._previous: _Handler = signal.SIG_DFL

    @property
    def url(self) -> str:
        """Its address on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    @property
    def page(self) -> str:
        """The page to open in a browser: the newest run's experiment, else the list of experiments."""
        administrator = self.options.administrator
        authorization = basic_authorization(administrator.name, administrator.password) if administrator else None
        return front_page(self.url, authorization) or f"{self.url}/#/experiments?{MODEL_TRAINING}"

    @property
    def log(self) -> Path:
        """The server's output; removed at an orderly end."""
        return self.home.root / f"mlflow-server-{self.port}.log"

    @property
    def is_private(self) -> bool:
        """True if only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def pid(self) -> int | None:
        """Process id of the server, once it was started."""
        return self._process.pid if self._process else None

    def __enter__(self) -> MlflowServer:
        environment = self._environment()
        self._previous = signal.signal(signal.SIGTERM, _interrupt)  # first, or a SIGTERM could leave the server behind
        try:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the server and its workers in
            # order. The home as working directory: what MLflow drops beside itself stays there.
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
        except BaseException:
            signal.signal(signal.SIGTERM, self._previous)
            raise
        return self

    def _open_log(self) -> BinaryIO:
        """Open an empty log. Raises UserError where it cannot be written."""
        try:
            log = os.fdopen(open_for_append(self.log), "wb")
            log.truncate(0)
        except OSError as error:
            raise UserError(f"{self.log} cannot be written ({first_line(error)}); remove it.") from None
        return log

    def _command(self) -> list[str]:
        """The command line, without secrets: other users of the machine see it."""
        command = [
            sys.executable, "-m", "mlflow", "server",
            "--artifacts-destination", self.options.artifacts or str(self.home.artifacts),
            "--host", self.host, "--port", str(self.port), "--workers", "1",
            "--allowed-hosts", ",".join(self._hosts),
            "--uvicorn-opts=--no-access-log",  # a line a request would fill the disk of a server that runs for months
        ]  # fmt: skip
        if self.options.administrator:
            command += ["--app-name", "basic-auth"]
        if self.options.serves_artifacts:
            return [*command, "--serve-artifacts"]
        return [*command, "--default-artifact-root", str(self.home.artifacts)]

    def _environment(self) -> dict[str, str]:
        settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
        for name in ("MLFLOW_TRACKING_URI", NAME, PASSWORD, "MLFLOW_DEFAULT_ARTIFACT_ROOT", "MLFLOW_ARTIFACTS_ONLY",
                     "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE"):  # fmt: skip
            settings.pop(name, None)  # a client's, or a setting that would weaken access
        settings["MLFLOW_BACKEND_STORE_URI"] = resolve_tracking_uri(self.options.database, self.home)
        if self.options.administrator:
            settings |= self.options.administrator.settings(self.home, os.environ)
        return settings

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """End the server; an interruption is the ordinary end, and is not raised again."""
        signal.signal(signal.SIGTERM, self._previous)
        assert self._process is not None
        for stop in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            os.killpg(self._process.pid, stop)
            try:
                self._process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                continue
        if kind is None or kind is KeyboardInterrupt:
            self.log.unlink(missing_ok=True)
        return kind is KeyboardInterrupt

    def wait_until_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until the server answers, for up to `timeout` seconds.

        Raises RunFailed where it ends first, or does not answer in time; UserError for a password that is not
        the administrator's.
        """
        assert self._process is not None
        deadline = time.monotonic() + timeout
        while check_reachable(self.url, 1.0) is not None:
            if self._process.poll() is not None:
                raise RunFailed(f"the MLflow server ended with code {self._process.returncode}; {self._last_words()}")
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"the MLflow server did not answer at {self.url} within {timeout:g} s; {self._last_words()}; "
                    "--wait SECONDS gives it more time."
                )
            time.sleep(0.2)
        if self.options.administrator:
            self.options.administrator.check_password(self.url)

    def wait(self) -> None:
        """Wait until the server ends. Raises RunFailed where it ends by itself with an error."""
        assert self._process is not None
        if code := self._process.wait():
            raise RunFailed(f"the MLflow server ended with code {code}; {self._last_words()}")

    def _last_words(self) -> str:
        """Where the server's log is, and its last line."""
        try:
            lines = read_plain(self.log, _LONGEST_LOG).decode(errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it is empty")
        return f"its log is {self.log}: {hide(last)[:300]}"


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


def front_page(url: str, authorization: str | None = None) -> str | None:
    """Address of the newest run's experiment, in its saved view, at a server that runs; None where it has no runs.

    An experiment of earlier versions, which has no such view yet, is given it.
    """
    try:
        found = _call(url, "experiments/search", {"max_results": _MOST_EXPERIMENTS}, authorization)
        experiments = {each["experiment_id"]: each for each in found.get("experiments", [])}
        query = {"experiment_ids": list(experiments), "max_results": 1, "order_by": ["attributes.start_time DESC"]}
        runs = _call(url, "runs/search", query, authorization).get("runs", []) if experiments else []
        if not runs:
            return None
        experiment = experiments[runs[0]["info"]["experiment_id"]]
        number = str(experiment["experiment_id"])
        if all(tag["key"] != VIEW_TAG for tag in experiment.get("tags", [])):
            tag = {"experiment_id": number, "key": VIEW_TAG, "value": view_value()}
            _call(url, "experiments/set-experiment-tag", tag, authorization)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # another server's answers; its first page is named then
    return f"{url}/{experiment_page(number)}"


def _call(url: str, name: str, body: dict[str, Any], authorization: str | None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/api/2.0/mlflow/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        found: dict[str, Any] = parse_json(answer.read(16 * MIB))
    return found


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(names: Sequence[str], host: str, port: int) -> list[str]:
    """MLflow's patterns for loopback, the interface listened on, and further names: `name` at any port, `name:port`.

    Raises UserError for a name that no host can have, `*` among them.
    """
    names = [name.strip() for entry in names for name in entry.split(",") if name.strip()]
    patterns = list(_LOOPBACK)
    if not is_loopback(host) and host not in _ALL_INTERFACES:
        names.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    for name in names:
        if not re.fullmatch(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?", name):
            raise UserError(
                f"--allowed-hosts {name} is no host's name; write names that browsers and clients use, such as "
                "mlflow.example.org or 10.0.0.5:5000."
            )
        patterns.append(name)
        if not re.search(r"[^:]:\d+$", name) or name.endswith("]"):
            patterns.append(f"{name.replace('[', '[[]', 1)}:*")
    return list(dict.fromkeys(patterns))


def database_address(uri: str, typed: bool) -> str:
    """Return `uri` if it is a database's and its driver is installed; `typed`: by the option, not the variable.

    Raises UserError where it is not, and for a typed password, which other users would see in `ps`.
    """
    knob = "--database" if typed else "MLFLOW_BACKEND_STORE_URI"
    if typed and hide_in_urls(uri) != uri:
        raise UserError(
            f"--database {hide_in_urls(uri)} shows its password to every user of this machine; leave it out and set "
            "PGPASSWORD, or set MLFLOW_BACKEND_STORE_URI to the whole address instead of --database."
        )
    validate_tracking_uri(uri, knob)
    scheme, _, driver = urlsplit(uri).scheme.partition("+")
    if scheme != "sqlite" and scheme not in _DRIVERS:
        raise UserError(
            f"{knob}={hide_in_urls(uri)} is no database; write postgresql://USER@HOST/DATABASE or the like."
        )
    module, package = (driver, driver) if driver else _DRIVERS.get(scheme, ("sqlite3", ""))
    if importlib.util.find_spec(module) is None:
        shown = hide_in_urls(uri)
        raise UserError(f"{knob}={shown} needs the Python module {module}; `pip install {package}` installs it.")
    return uri


def artifact_location(location: str) -> str:
    """The absolute path of a folder; a URI as it is. Raises UserError for a URI with a key, or without its library."""
    try:
        refuse_secret("--artifacts", location)
    except ValueError as error:
        raise UserError(str(error)) from None
    if "://" not in location:
        return str(resolve_user_path(location))
    module = _LIBRARIES.get(urlsplit(location).scheme, "os")
    try:
        is_there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise UserError(f"--artifacts {location} needs the Python module {module}; install it, or name a folder.")
    return location
