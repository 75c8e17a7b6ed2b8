"""HTTP server of one run's live page, on loopback.

Python's own `http.server` and a thread for each request: three kinds of answers to a few browsers of one machine, in
milliseconds and without a dependency. MLflow's uvicorn and starlette would take longer to import than to answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.reports.page import Page, digest_of, live_policy, render_live_html, render_sections
from ditlab.runs.live.followed_run import FollowedRun, page_fault
from ditlab.runs.loopback import HEADERS, HOST, Answer, LoopbackServer
from ditlab.runs.report.pictures import load_picture

INTERVAL = 2.0
"""Seconds between a browser's questions for changes."""
_TYPES = {".png": "image/png", ".gif": "image/gif", ".jpg": "image/jpeg", ".webp": "image/webp"}
_LEAST_AGE = 1.0
"""Seconds for which a page is not made again, however many browsers ask."""
_SHARE = 5.0
"""A page is not made again for this many times what it took: at most a sixth of one core."""


class LivePage:
    """Server of a run's page. `serve` answers until it is interrupted; closing it frees the port."""

    def __init__(self, home: Home, folder: RunFolder, port: int, warn: Callable[[str], None]) -> None:
        """Listen on `port` of loopback; 0 takes a free one. Raises UserError for a port that cannot be listened on."""
        self._run, self._warn = FollowedRun(home, folder), warn
        self._lock = threading.Lock()
        self._page: Page | None = None
        self._rendered: dict[str, str] = {}
        self._made, self._cost, self._fault = 0.0, 0.0, ""
        try:
            headers = {**HEADERS, "Content-Security-Policy": live_policy() + "; frame-ancestors 'none'"}
            self._server = LoopbackServer(port, self.respond, page_fault, headers)
        except OSError as error:
            raise UserError(
                f"--port {port} on {HOST} cannot be listened on ({error.strerror}); give another --port, or 0 for a "
                "free one."
            ) from error

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Its address on this machine."""
        return f"http://{HOST}:{self.port}/"

    def __enter__(self) -> LivePage:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    def serve(self) -> None:
        """Answer requests until `stop` or an exception such as KeyboardInterrupt."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `serve`, from another thread."""
        self._server.shutdown()

    def respond(self, path: str) -> Answer:
        """Answer with the page, its changes or a picture. Raises UserError and OSError where they cannot be read."""
        address = urlsplit(path)
        if address.path == "/":
            return Answer(self.document().encode(), "text/html; charset=utf-8")
        if address.path == "/update":
            pairs = parse_qs(address.query).get("have", [""])[0].split(",")
            have = dict(pair.split(":", 1) for pair in pairs if ":" in pair)
            return Answer(json.dumps(self.changes(have), allow_nan=False).encode(), "application/json")
        return self.picture(address.path.lstrip("/")) or Answer(b"there is nothing here\n", status=HTTPStatus.NOT_FOUND)

    def document(self) -> str:
        """The whole page, as it is now."""
        with self._lock:
            self._refresh()
            if self._page is None:
                raise UserError(self._fault)
            return render_live_html(self._page, INTERVAL)

    def changes(self, have: Mapping[str, str]) -> dict[str, Any]:
        """Sections that are not as a browser has them, by their digests in `have`; and all keys in order."""
        with self._lock:
            self._refresh()
            if self._page is None:
                raise UserError(self._fault)
            digests = {key: digest_of(html) for key, html in self._rendered.items()}
            sections = [
                {"key": key, "html": html, "digest": digests[key]}
                for key, html in self._rendered.items()
                if have.get(key) != digests[key]
            ]
            now = time.strftime("%H:%M:%S")
            state = f"live: training, as of {now}" if self._page.status == "running" else f"as of {now}: not training"
            if self._fault:
                state = f"as it was before: {self._fault}"
            return {
                "title": self._page.title, "order": self._page.keys(), "sections": sections, "state": state,
                "kind": "lost" if self._fault else self._page.status,
            }  # fmt: skip

    def picture(self, name: str) -> Answer | None:
        """Picture that the page names; None for anything else. Raises OSError."""
        with self._lock:
            path = self._run.pictures.paths.get(name)
        if path is None:
            return None
        content, kind = load_picture(path)
        return Answer(content, _TYPES[kind])

    def _refresh(self) -> None:
        """Make the page anew unless it is recent; a fault leaves the one before."""
        if time.monotonic() - self._made < max(_LEAST_AGE, _SHARE * self._cost) and self._page is not None:
            return
        begun = time.monotonic()
        try:
            page = self._run.page()
            self._rendered, self._page, self._fault = render_sections(page), page, ""
        except Exception as error:  # the next look may find the files whole again
            if self._fault != (fault := page_fault(error)):
                self._fault = fault
                self._warn(fault)
        self._made = time.monotonic()
        self._cost = self._made - begun
