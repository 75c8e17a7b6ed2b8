"""HTTP servers on this machine's loopback, and that of a run's metrics (`ditlab train --metrics-port`)."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from ditlab.errors import UserError, first_line
from ditlab.tracking.server import is_loopback

HOST = "127.0.0.1"
REQUEST_TIMEOUT = 30.0
"""Seconds that a connection may say nothing."""
HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip
TEXT = "text/plain; charset=utf-8"
_NOTHING_YET = b"# EOF\n"
"""No metric, in the same format: before the run has written any."""


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


class MetricsServer(LoopbackServer):
    """Server of `/metrics`: the file that a run renews (`tracking.openmetrics`). Use as a context manager."""

    def __init__(self, port: int) -> None:
        """Listen on a port of loopback at once. Raises UserError where that is impossible."""
        if not 1 <= port <= 65535:
            raise UserError(f"metrics_port={port} is no port; give one from 1 to 65535.")
        super().__init__(port, "--metrics-port")
        self._file: Path | None = None
        self._thread = threading.Thread(target=self.serve_forever, name="ditlab-metrics", daemon=True)

    def follow(self, file: Path) -> None:
        """Serve a run's file from now on."""
        self._file = file

    def respond(self, path: str) -> Answer:
        """Answer with the metrics as they are now. Raises OSError where the file cannot be read."""
        if path.partition("?")[0] != "/metrics":
            return Answer(b"the metrics are at /metrics\n", status=HTTPStatus.NOT_FOUND)
        try:
            content = self._file.read_bytes() if self._file else _NOTHING_YET
        except FileNotFoundError:
            content = _NOTHING_YET
        return Answer(content, CONTENT_TYPE_LATEST)

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
