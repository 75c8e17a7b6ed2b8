"""Storage of an MLflow server outside DITLAB_HOME: its database and its artifacts."""

import importlib.util
from urllib.parse import urlsplit

from ditlab.errors import UserError
from ditlab.home import followed
from ditlab.secrets import hide_in_urls
from ditlab.spec.uris import refuse_secret
from ditlab.tracking.address import validate_tracking_uri

# SQLAlchemy's driver, and its package, for a scheme without +DRIVER.
_DRIVERS = {"postgresql": ("psycopg2", "psycopg2-binary"), "mysql": ("MySQLdb", "mysqlclient"),
            "mssql": ("pyodbc", "pyodbc")}  # fmt: skip
_LIBRARIES = {"s3": "boto3", "gs": "google.cloud.storage", "wasbs": "azure.storage.blob"}


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
        return str(followed(location))
    module = _LIBRARIES.get(urlsplit(location).scheme, "os")
    try:
        is_there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise UserError(f"--artifacts {location} needs the Python module {module}; install it, or name a folder.")
    return location
