"""Parts of HTTP servers on this machine's loopback: names that they answer to, headers, threads."""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from typing import Any

from ditlab.tracking.server.hosts import is_loopback

HOST = "127.0.0.1"
REQUEST_TIMEOUT = 30.0
"""Seconds that a connection may say nothing."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FOREIGN_NAME = b"this server answers to names of loopback alone\n"


class LoopbackServer(ThreadingHTTPServer):
    """HTTP server with a thread for each request, of which none keeps the process alive."""

    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


def is_own_name(hosts: list[str]) -> bool:
    """Return True for a request's only Host header if it names loopback, at any port: a tunnel may end on another.

    A page of another site that makes its name lead to 127.0.0.1 (DNS rebinding) is refused by its name.
    """
    if len(hosts) != 1:
        return False
    host = hosts[0].strip()
    name, bracket, port = host.rpartition("]") if host.startswith("[") else (host.partition(":")[0], "", "")
    if bracket:
        name, port = name[1:], port.lstrip(":")
    else:
        port = host.partition(":")[2]
    return is_loopback(name.lower()) and (not port or (port.isascii() and port.isdigit()))
