"""HTTP server of a run's metrics for scrapers, on loopback: `ditlab train --metrics-port`."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from ditlab.errors import UserError, first_line
from ditlab.runs.loopback import FOREIGN_NAME, HEADERS, HOST, REQUEST_TIMEOUT, LoopbackServer, is_own_name
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.tracking.openmetrics import CONTENT_TYPE

LARGEST_PORT = 65535
_LARGEST_FILE = 16 * MIB
_PATH = "/metrics"
_NOTHING_YET = b"# EOF\n"
"""No metric, in the same format: before the run has written any."""


class MetricsServer:
    """Server of `/metrics`: the file that a run renews (`tracking.openmetrics`). Use as a context manager."""

    def __init__(self, port: int) -> None:
        """Listen on a port of loopback at once. Raises UserError where that is impossible."""
        if not 1 <= port <= LARGEST_PORT:
            raise UserError(f"metrics_port={port} is no port; give one from 1 to {LARGEST_PORT}.")
        self._file: Path | None = None
        try:
            self._server = LoopbackServer((HOST, port), _handler(self))
        except OSError as error:
            raise UserError(
                f"--metrics-port {port} on {HOST} cannot be listened on ({error.strerror}); give another port."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="ditlab-metrics", daemon=True)

    def follow(self, file: Path) -> None:
        """Serve a run's file from now on."""
        self._file = file

    def content(self) -> bytes:
        """The metrics as they are now. Raises OSError where the file cannot be read."""
        try:
            return read_plain(self._file, _LARGEST_FILE) if self._file else _NOTHING_YET
        except FileNotFoundError:
            return _NOTHING_YET

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(metrics: MetricsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET and HEAD of `/metrics`."""

        server_version, sys_version = "ditlab", ""
        timeout = REQUEST_TIMEOUT

        def do_GET(self) -> None:
            if not is_own_name(self.headers.get_all("Host") or []):
                self._answer(HTTPStatus.FORBIDDEN, FOREIGN_NAME)
            elif self.path.partition("?")[0] != _PATH:
                self._answer(HTTPStatus.NOT_FOUND, b"the metrics are at /metrics\n")
            else:
                try:
                    content = metrics.content()
                except OSError as error:
                    reason = f"the metrics cannot be read ({first_line(error)})\n"
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, reason.encode(errors="replace"))
                else:
                    self._answer(HTTPStatus.OK, content, CONTENT_TYPE)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, status: HTTPStatus, content: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Print nothing for a request."""

    return Handler
