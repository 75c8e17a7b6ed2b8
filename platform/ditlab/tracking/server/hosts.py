"""Allowed Host headers of the MLflow server (prevents DNS rebinding)."""

import ipaddress
import re
from collections.abc import Sequence

from ditlab.errors import UserError

_ALL_INTERFACES = ("0.0.0.0", "::")
# Tunnels end on any port of loopback, and no foreign name reaches it. MLflow compares with fnmatch, so `[` is escaped.
_LOOPBACK = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]:*", "[::1]")


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
