"""`mlflow server` on a home folder, as a child process, which alone imports mlflow: hosts, storage, accounts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import ipaddress
import os
import re
import secrets
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from ditlab.errors import RunFailed, UserError, first_line
from ditlab.home import Home, resolve_user_path
from ditlab.secrets import hide, hide_in_urls
from ditlab.spec.uris import refuse_secret
from ditlab.storage.plain_files import check_plain
from ditlab.tracking.access import (
    DATABASE_PORTS,
    artifact_address,
    basic_authorization,
    check_reachable,
    exempt_from_proxies,
    probe,
    resolve_tracking_uri,
    scheme_of,
    sqlite_address,
    sqlite_path,
    validate_tracking_uri,
)
from ditlab.tracking.mlflow_connection import REFILL, database_damage, open_read_only, schema_fault
from ditlab.tracking.names import MODEL_TRAINING, experiment_page

_PROGRAM = Path(__file__).with_name("serve_mlflow.py")
_STOP_TIMEOUT = 10.0  # seconds
NAME, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
MIN_PASSWORD_LENGTH = 12  # characters: MLflow takes none below

# Every account reads every run: only the administrator makes accounts, and a laboratory that shares a server shares its
# results. The account that made an experiment, or was granted it, writes to it.
DEFAULT_PERMISSION = "READ"

_APP = "ditlab"
"""Name of `training_app` among the apps that MLflow finds."""
_CHOICE = (
    'const key="mlflow.workflowType_v1";'
    "try{localStorage.getItem(key)??localStorage.setItem(key,'\"machine_learning\"')}catch{}"
)
"""Script: the choice of a browser that has none yet."""

_WELL_KNOWN = frozenset({
    "password1234", "password12345", "password123456", "passwordpassword", "administrator", "administrator1",
    "admin1234567", "admin12345678", "admin123456789", "changemechangeme", "changeme1234", "123456789012",
    "1234567890123", "123456781234", "qwertyuiop12", "qwertyuiop123", "qwerty123456", "letmeinletmein", "iloveyou1234",
    "welcome12345", "mlflowmlflow", "mlflow123456", "mlflow-password", "ditlabditlab", "ditlab-password",
    "your-password", "mypassword123", "secretsecret", "secretpassword", "strong-password", "<strong-password>",
})  # fmt: skip
_ALL_INTERFACES = ("0.0.0.0", "::")
# Tunnels end on any port of loopback, and no foreign name reaches it. MLflow compares with fnmatch, so `[` is escaped.
_LOOPBACK = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]:*", "[::1]")


@dataclass(frozen=True)
class Administrator:
    """The account that may do everything, and makes the other accounts."""

    name: str
    password: str = field(repr=False)

    @classmethod
    def from_environment(cls) -> Administrator:
        """Read name and password. Raises UserError for a missing one, and for a short or widely known password."""
        name = os.environ.get(NAME, "")
        password = os.environ.get(PASSWORD, "")
        missing = " and ".join(each for each, value in ((NAME, name), (PASSWORD, password)) if not value)
        if missing:
            raise UserError(
                f"--auth needs {missing}, which has no default; set {NAME} and {PASSWORD} (at least "
                f"{MIN_PASSWORD_LENGTH} characters) to the administrator's."
            )
        if ":" in name or not name.isprintable():
            raise UserError(f"{NAME}={name!r} holds a colon or what cannot be printed; choose another name.")
        if len(password) < MIN_PASSWORD_LENGTH:
            raise UserError(f"{PASSWORD} is too short; choose at least {MIN_PASSWORD_LENGTH} characters.")
        beyond_name = password.lower().replace(name.lower(), "")
        if password.lower() in _WELL_KNOWN or len(beyond_name) < 6 or len(set(password)) < 5:
            raise UserError(
                f"{PASSWORD} is known to everybody or easily guessed; choose another, such as what "
                "`openssl rand -hex 16` prints."
            )
        return cls(name, password)

    def settings(self, home: Home, environment: Mapping[str, str]) -> dict[str, str]:
        """Write basic-auth's settings into DITLAB_HOME; returns variables. Raises UserError for files others read."""
        _private_file(home.mlflow_users, None)
        database = sqlite_address(home.mlflow_users).replace("%", "%%")  # the file's format expands %
        _private_file(
            home.mlflow_access,
            "[mlflow]\n"
            f"default_permission = {DEFAULT_PERMISSION}\n"
            f"database_uri = {database}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n",
        )
        path = home.mlflow_key
        key = "MLFLOW_FLASK_SERVER_SECRET_KEY"
        if not (secret := environment.get(key)):  # a random one, the same at every start: open forms stay valid
            _private_file(path, None if path.exists() and path.stat().st_size else secrets.token_hex(32))
            secret = path.read_text(encoding="utf-8").strip()
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(home.mlflow_access),
            "MLFLOW_AUTH_ADMIN_USERNAME": self.name,
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.password,
            key: secret,
        }


def training_app() -> Any:
    """MLflow's own app, whose pages begin with model training; the entry point `mlflow.app` of this package names it.

    MLflow 3.17 ignores an experiment's kind on a run's page: it shows what the browser chose last in the switch at the
    top left, and pages for language-model applications to one that never chose.
    """
    from flask import Response, request
    from mlflow.server import app as pages
    from mlflow.server.fastapi_app import app

    @pages.after_request
    def choose(answer: Response) -> Response:
        if request.path == "/" and answer.status_code == 200 and answer.mimetype == "text/html":
            answer.direct_passthrough = False
            answer.set_data(answer.get_data().replace(b"<head>", f"<head><script>{_CHOICE}</script>".encode(), 1))
        return answer

    return app


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


class MlflowServer:
    """A server that starts on entering the context and ends with it, also where that is KeyboardInterrupt."""

    def __init__(self, home: Home, host: str, port: int, options: ServerOptions) -> None:
        """Check the port and the home. Raises UserError where that cannot be listened on, or this was moved."""
        self.home = home
        self.host = host
        self.port = port
        self.options = options
        self.log = home.root / f"mlflow-server-{port}.log"
        """The server's output; removed at an orderly end."""
        if options.database is None:
            home.check_place()
            if damage := database_damage(home.mlflow_database):
                raise UserError(f"{damage}; {REFILL}.")
        uri = resolve_tracking_uri(options.database, home)
        if uri.startswith("sqlite:") and (fault := schema_fault(sqlite_path(uri))):
            raise UserError(f"{sqlite_path(uri)}: {fault}.")
        if options.administrator and importlib.util.find_spec("flask_wtf") is None:
            raise UserError(
                "--auth needs the Python module flask_wtf, which a plain installation leaves out; "
                "`pip install 'ditlab[cluster]'` installs it."
            )
        self._hosts = allowed_hosts(self.options.hosts, host, port)
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
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    @property
    def page(self) -> str:
        """The page to open in a browser: the newest run's experiment, else the list of experiments."""
        uri = resolve_tracking_uri(self.options.database, self.home)
        query = "SELECT experiment_id FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time DESC LIMIT 1"
        found = None
        if uri.startswith("sqlite:"):
            with suppress(OSError, sqlite3.Error), closing(open_read_only(sqlite_path(uri))) as connection:
                found = connection.execute(query).fetchone()
        return f"{self.url}/{experiment_page(str(found[0])) if found else f'#/experiments?{MODEL_TRAINING}'}"

    @property
    def pid(self) -> int | None:
        """Process id of the server, once it was started."""
        return self._process.pid if self._process else None

    def __enter__(self) -> MlflowServer:
        exempt_from_proxies(self.host)
        environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
        environment["PYTHONSAFEPATH"] = "1"  # it starts in the home, whose files are no modules
        for name in ("MLFLOW_TRACKING_URI", NAME, PASSWORD, "MLFLOW_DEFAULT_ARTIFACT_ROOT", "MLFLOW_ARTIFACTS_ONLY",
                     "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE"):  # fmt: skip
            environment.pop(name, None)  # a client's, or a setting that would weaken access
        environment["MLFLOW_BACKEND_STORE_URI"] = resolve_tracking_uri(self.options.database, self.home)
        environment["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join(self._hosts)
        if self.options.administrator:
            environment |= self.options.administrator.settings(self.home, os.environ)
        # A session of its own: Ctrl-C reaches this process alone, which then ends the server and its workers in order.
        # The home as working directory: what MLflow drops beside itself stays there.
        with self._open_log() as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self.home.root, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        return self

    def _open_log(self) -> IO[bytes]:
        try:
            return self.log.open("wb")
        except OSError as error:
            raise UserError(f"{self.log} cannot be written ({first_line(error)}); remove it.") from None

    def _command(self) -> list[str]:
        """The command line, without secrets: other users of the machine see it."""
        command = [
            sys.executable, str(_PROGRAM),
            "--artifacts-destination", self.options.artifacts or artifact_address(self.home.artifacts),
            "--host", self.host, "--port", str(self.port), "--workers", "1",
            "--uvicorn-opts=--no-access-log",  # a line a request would fill the disk of a server that runs for months
        ]  # fmt: skip
        if self.options.administrator:
            command += ["--app-name", "basic-auth"]
        elif importlib.metadata.entry_points(group="mlflow.app", name=_APP):
            command += ["--app-name", _APP]
        if self.options.administrator or self.options.database or self.options.artifacts:
            return [*command, "--serve-artifacts"]  # clients may be on other machines, without keys to the storage
        return [*command, "--default-artifact-root", artifact_address(self.home.artifacts)]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """End the server; an interruption is the ordinary end, and is not raised again."""
        assert self._process is not None
        for stop in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            os.killpg(self._process.pid, stop)
            try:
                self._process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                continue
        is_interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if kind is None or is_interrupted:
            self.log.unlink(missing_ok=True)
        return is_interrupted

    def wait_until_ready(self, timeout: float) -> None:
        """Wait for an answer, mostly MLflow's imports. Raises RunFailed for none, UserError for a wrong password."""
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
        account = self.options.administrator
        # MLflow sets the password at its first start.
        if account and probe(self.url, basic_authorization(account.name, account.password))[0] == 401:
            raise UserError(
                f"{PASSWORD} is not the one that {NAME}={account.name} has in this server's accounts; give that one, "
                "or change it by MLflow's update-password call."
            )

    def wait(self) -> None:
        """Wait until the server ends. Raises RunFailed where it ends by itself with an error."""
        assert self._process is not None
        if code := self._process.wait():
            raise RunFailed(f"the MLflow server ended with code {code}; {self._last_words()}")

    def _last_words(self) -> str:
        """Where the server's log is, and its last line."""
        try:
            lines = self.log.read_bytes().decode(errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it is empty")
        return f"its log is {self.log}: {hide(last)[:300]}"


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(names: Sequence[str], host: str, port: int) -> list[str]:
    """MLflow's patterns for loopback, the interface and `NAME` or `NAME:PORT`. Raises UserError for no host's name."""
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
    """Return `uri` if it is a database's. Raises UserError if not, and for a password that is `typed` as an option."""
    option = "--database" if typed else "MLFLOW_BACKEND_STORE_URI"
    if typed and hide_in_urls(uri) != uri:
        raise UserError(
            f"--database {hide_in_urls(uri)} shows its password to every user of this machine; leave it out and set "
            "PGPASSWORD, or set MLFLOW_BACKEND_STORE_URI to the whole address instead of --database."
        )
    scheme = scheme_of(urlsplit(validate_tracking_uri(uri, option)))
    if scheme != "sqlite" and scheme not in DATABASE_PORTS:
        raise UserError(
            f"{option}={hide_in_urls(uri)} is no database; write postgresql://USER@HOST/DATABASE or the like."
        )
    return uri


def artifact_location(location: str) -> str:
    """Return the address of a folder, a URI as it is. Raises UserError for a URI that holds a key."""
    try:
        refuse_secret("--artifacts", location)
    except ValueError as error:
        raise UserError(str(error)) from None
    return location if "://" in location else artifact_address(resolve_user_path(location))


def _private_file(path: Path, text: str | None) -> None:
    """Make a file that only its owner reads or writes, with a new text or as it is; raises UserError for any other."""
    try:
        check_plain(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"{path} cannot be used ({error.strerror}); remove it.") from None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        state = os.fstat(file.fileno())
        if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
            raise UserError(
                f"{path} can be read by others than its owner; make it yours alone (`chmod 600`), or remove it."
            )
        if text is not None:
            file.truncate()
            file.write(text)
