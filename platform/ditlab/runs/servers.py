"""HTTP servers on this machine's loopback."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from ditlab.errors import UserError, first_line

HOST = "127.0.0.1"
REQUEST_TIMEOUT = 30.0
"""Seconds that a connection may say nothing."""
HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip
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
    headers: ClassVar[Mapping[str, str]] = HEADERS

    def __init__(self, port: int, option: str) -> None:
        """Listen on a port of loopback at once. Raises UserError, which names `option`, where that is impossible."""
        try:
            super().__init__((HOST, port), _LoopbackHandler)
        except OSError as error:
            raise UserError(
                f"{option} {port} on {HOST} cannot be listened on ({error.strerror}); give another port."
            ) from error

    def respond(self, path: str) -> Answer:
        """Answer a path with its query; where it raises UserError or OSError, the answer is 503 with its sentence."""
        raise NotImplementedError

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _LoopbackHandler(BaseHTTPRequestHandler):
    """Handler of GET and HEAD for a `LoopbackServer`."""

    server: LoopbackServer
    server_version, sys_version = "ditlab", ""
    timeout = REQUEST_TIMEOUT

    def do_GET(self) -> None:
        answer = FOREIGN_NAME
        if is_own_name(self.headers.get_all("Host") or []):
            try:
                answer = self.server.respond(self.path)
            except (UserError, OSError) as error:
                text = f"it cannot be read: {first_line(error)}\n".encode(errors="replace")
                answer = Answer(text, status=HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_response(answer.status)
        own = {"Content-Type": answer.kind, "Content-Length": str(len(answer.content))}
        for name, value in {**self.server.headers, **own}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Print nothing for a request."""


def is_own_name(hosts: list[str]) -> bool:
    """Return True if a request's only Host names loopback; a name led here by DNS rebinding is refused."""
    if len(hosts) != 1:
        return False
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]@]+)(:[0-9]+)?", hosts[0].strip().lower())
    return found is not None and is_loopback(found[1].strip("[]"))


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
