"""Who may use an MLflow server: its administrator, from the environment; its accounts, in DITLAB_HOME."""

import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.tracking.access import basic, status

NAME, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
SHORTEST = 12  # characters of a password: MLflow takes none below

# An account of this server reads every run: accounts are made by the administrator alone, and a laboratory that shares
# a server shares its results. Who made an experiment, or is granted it, writes to it.
DEFAULT_PERMISSION = "READ"

_WELL_KNOWN = frozenset({
    "password1234", "password12345", "password123456", "passwordpassword", "administrator", "administrator1",
    "admin1234567", "admin12345678", "admin123456789", "changemechangeme", "changeme1234", "123456789012",
    "1234567890123", "123456781234", "qwertyuiop12", "qwertyuiop123", "qwerty123456", "letmeinletmein", "iloveyou1234",
    "welcome12345", "mlflowmlflow", "mlflow123456", "mlflow-password", "ditlabditlab", "ditlab-password",
    "your-password", "mypassword123", "secretsecret", "secretpassword", "strong-password", "<strong-password>",
})  # fmt: skip


@dataclass(frozen=True)
class Administrator:
    """The account that may do everything, and makes the others."""

    name: str
    password: str = field(repr=False)

    @classmethod
    def from_environment(cls) -> "Administrator":
        """Raises UserError for a name or password that is missing, short, or known to everybody."""
        name, password = os.environ.get(NAME, ""), os.environ.get(PASSWORD, "")
        missing = " and ".join(each for each, value in ((NAME, name), (PASSWORD, password)) if not value)
        if missing:
            raise UserError(
                f"--auth needs {missing}, which no default stands in for; set {NAME} and {PASSWORD} (at least "
                f"{SHORTEST} characters) to the administrator's."
            )
        if ":" in name or not name.isprintable():
            raise UserError(f"{NAME}={name!r} holds a colon or what cannot be printed; choose another name.")
        if len(password) < SHORTEST:
            raise UserError(f"{PASSWORD} is too short; choose at least {SHORTEST} characters.")
        beyond_name = password.lower().replace(name.lower(), "")
        if password.lower() in _WELL_KNOWN or len(beyond_name) < 6 or len(set(password)) < 5:
            raise UserError(
                f"{PASSWORD} is known to everybody or easily guessed; choose another, such as what "
                "`openssl rand -hex 16` prints."
            )
        return cls(name, password)

    def check_known_to(self, url: str) -> None:
        """Raises UserError where the server has another password for this name: MLflow sets it at its first start."""
        if status(url, basic(self.name, self.password)) in (401, 403):
            raise UserError(
                f"{PASSWORD} is not the one that {NAME}={self.name} has in this server's accounts; give that one, or "
                "change it by MLflow's update-password call."
            )

    def settings(self, home: Home, environment: Mapping[str, str]) -> dict[str, str]:
        """Environment variables for `mlflow server --app-name basic-auth`. Writes what it reads into DITLAB_HOME, for
        the user's eyes only. Raises UserError where others may read what was there."""
        _private(home.mlflow_users, None)
        database = str(home.mlflow_users).replace("%", "%%")  # the file's format expands %
        _private(
            home.mlflow_access,
            "[mlflow]\n"
            f"default_permission = {DEFAULT_PERMISSION}\n"
            f"database_uri = sqlite:///{database}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n",
        )
        key = "MLFLOW_FLASK_SERVER_SECRET_KEY"
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(home.mlflow_access),
            "MLFLOW_AUTH_ADMIN_USERNAME": self.name,
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.password,
            key: environment.get(key) or _kept_key(home.mlflow_key),
        }


def _kept_key(path: Path) -> str:
    """A random key, the same at every start: forms that a browser has open outlive one."""
    if not path.exists() or not path.stat().st_size:
        _private(path, secrets.token_hex(32))
    _private(path, None)
    return path.read_text(encoding="utf-8").strip()


def _private(path: Path, text: str | None) -> None:
    """A file that only its owner reads or writes, with a text or as it is. Raises UserError for another one's file."""
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
