"""HTTP servers on this machine's loopback: answers to GET and HEAD, names that they answer to, headers, threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ditlab.errors import UserError
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
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """Answer to a request."""

    content: bytes
    kind: str = TEXT
    """Its Content-Type."""
    status: HTTPStatus = HTTPStatus.OK


FOREIGN_NAME = Answer(b"this server answers to names of loopback alone\n", status=HTTPStatus.FORBIDDEN)


class LoopbackServer(ThreadingHTTPServer):
    """HTTP server with a thread for each request, of which none keeps the process alive."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        port: int,
        respond: Callable[[str], Answer],
        fault: Callable[[Exception], str],
        headers: Mapping[str, str] = HEADERS,
    ) -> None:
        """Listen on a port of loopback at once; 0 takes a free one.

        `respond` answers a path with its query; where it raises UserError or OSError, the answer is 503 with what
        `fault` says of that. Raises OSError for a port that cannot be listened on.
        """
        self.respond, self.fault, self.headers = respond, fault, headers
        super().__init__((HOST, port), _LoopbackHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _LoopbackHandler(BaseHTTPRequestHandler):
    """Handler of GET and HEAD for a `LoopbackServer`."""

    server: LoopbackServer
    server_version, sys_version = "ditlab", ""
    timeout = REQUEST_TIMEOUT

    def do_GET(self) -> None:
        answer = self._answer() if is_own_name(self.headers.get_all("Host") or []) else FOREIGN_NAME
        self.send_response(answer.status)
        own = {"Content-Type": answer.kind, "Content-Length": str(len(answer.content))}
        for name, value in {**self.server.headers, **own}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self) -> Answer:
        try:
            return self.server.respond(self.path)
        except (UserError, OSError) as error:
            text = f"{self.server.fault(error)}\n"
            return Answer(text.encode(errors="replace"), status=HTTPStatus.SERVICE_UNAVAILABLE)

    def log_message(self, *_: Any) -> None:
        """Print nothing for a request."""


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
