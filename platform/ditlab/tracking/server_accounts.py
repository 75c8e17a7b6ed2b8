"""Accounts of an MLflow server: the administrator, from the environment, and the database in DITLAB_HOME."""

import importlib.util
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.storage.plain_files import check_plain
from ditlab.tracking.access import basic_authorization, probe_status

NAME, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
MIN_PASSWORD_LENGTH = 12  # characters: MLflow takes none below

# Every account reads every run: only the administrator makes accounts, and a laboratory that shares a server shares its
# results. The account that made an experiment, or was granted it, writes to it.
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
    """The account that may do everything, and makes the other accounts."""

    name: str
    password: str = field(repr=False)

    @classmethod
    def from_environment(cls) -> "Administrator":
        """Read name and password. Raises UserError for a missing one, and for a short or widely known password."""
        name, password = os.environ.get(NAME, ""), os.environ.get(PASSWORD, "")
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

    def check_password(self, url: str) -> None:
        """Raise UserError where the server has another password for this name: MLflow sets it at its first start."""
        if probe_status(url, basic_authorization(self.name, self.password)) in (401, 403):
            raise UserError(
                f"{PASSWORD} is not the one that {NAME}={self.name} has in this server's accounts; give that one, or "
                "change it by MLflow's update-password call."
            )

    def settings(self, home: Home, environment: Mapping[str, str]) -> dict[str, str]:
        """Environment variables for `mlflow server --app-name basic-auth`; writes its settings file into DITLAB_HOME.

        Raises UserError where files that must be private can be read by others.
        """
        _private_file(home.mlflow_users, None)
        database = str(home.mlflow_users).replace("%", "%%")  # the file's format expands %
        _private_file(
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
            key: environment.get(key) or _secret_key(home.mlflow_key),
        }


def check_auth_packages() -> None:
    """Raise UserError where the package is missing that MLflow needs for accounts, beyond its plain installation."""
    if importlib.util.find_spec("flask_wtf") is None:
        raise UserError(
            "--auth needs the Python module flask_wtf, which a plain installation leaves out; "
            "`pip install 'ditlab[cluster]'` installs it."
        )


def _secret_key(path: Path) -> str:
    """A random key, the same at every start, so that forms open in a browser stay valid over a restart."""
    if not path.exists() or not path.stat().st_size:
        _private_file(path, secrets.token_hex(32))
    _private_file(path, None)
    return path.read_text(encoding="utf-8").strip()


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
