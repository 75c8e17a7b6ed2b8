"""The names under which an MLflow server answers: by others, a web page could lead a browser to it (DNS rebinding)."""

import ipaddress
import re
from collections.abc import Sequence

from ditlab.errors import UserError

_ANY = ("0.0.0.0", "::")
# Tunnels end on any port of loopback, and no foreign name reaches it. MLflow compares with fnmatch, so `[` is escaped.
_LOOPBACK = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]:*", "[::1]")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(wanted: Sequence[str], host: str, port: int) -> list[str]:
    """MLflow's patterns: loopback, the interface that is listened on, and what is wanted (`name` at any port,
    `name:port`). Raises UserError for what is no host's name, `*` among them."""
    names = [name.strip() for entry in wanted for name in entry.split(",") if name.strip()]
    patterns = list(_LOOPBACK)
    if not is_loopback(host) and host not in _ANY:
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
