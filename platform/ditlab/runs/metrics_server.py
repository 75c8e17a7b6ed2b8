"""HTTP server of a run's metrics for scrapers, on loopback: `ditlab train --metrics-port`."""

from __future__ import annotations

import threading
from http import HTTPStatus
from pathlib import Path

from ditlab.errors import UserError, first_line
from ditlab.runs.loopback import HOST, Answer, LoopbackServer
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
            self._server = LoopbackServer(port, self.respond, _fault)
        except OSError as error:
            raise UserError(
                f"--metrics-port {port} on {HOST} cannot be listened on ({error.strerror}); give another port."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="ditlab-metrics", daemon=True)

    def follow(self, file: Path) -> None:
        """Serve a run's file from now on."""
        self._file = file

    def respond(self, path: str) -> Answer:
        """Answer with the metrics as they are now. Raises OSError where the file cannot be read."""
        if path.partition("?")[0] != _PATH:
            return Answer(b"the metrics are at /metrics\n", status=HTTPStatus.NOT_FOUND)
        try:
            content = read_plain(self._file, _LARGEST_FILE) if self._file else _NOTHING_YET
        except FileNotFoundError:
            content = _NOTHING_YET
        return Answer(content, CONTENT_TYPE)

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _fault(error: Exception) -> str:
    return f"the metrics cannot be read ({first_line(error)})"
