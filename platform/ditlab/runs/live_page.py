"""A run's page served live on loopback, read only, from the journal, of which each look reads only the new lines."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.reports.page import Page, content_policy, digest_of, render_html, render_sections
from ditlab.runs.page import RunContent, run_page
from ditlab.runs.page_pictures import LinkedPictures, load_picture
from ditlab.runs.servers import HEADERS, HOST, Answer, LoopbackServer
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.tracking.journal import JournalContent, read_lines

INTERVAL = 2.0
"""Seconds between a browser's questions for changes."""
_LEAST_AGE = 1.0
"""Seconds for which a page is not made again, however many browsers ask."""
_SHARE = 5.0
"""A page is not made again for this many times what it took: at most a sixth of one core."""


class LivePage(LoopbackServer):
    """Server of a run's page. `serve_forever` answers until it is interrupted; closing it frees the port."""

    headers: ClassVar[Mapping[str, str]] = {
        **HEADERS,
        "Content-Security-Policy": content_policy(is_live=True) + "; frame-ancestors 'none'",
    }

    def __init__(self, home: Home, folder: RunFolder, port: int, warn: Callable[[str], None]) -> None:
        """Listen on `port` of loopback; 0 takes a free one. Raises UserError for a port that cannot be listened on."""
        self._home, self._folder, self._warn = home, folder, warn
        self._content, self._inode = JournalContent(), 0
        self._pictures = LinkedPictures()
        self._experiment: Experiment | None = None
        self._lock = threading.Lock()
        self._page: Page | None = None
        self._rendered: dict[str, str] = {}
        self._made, self._cost, self._fault = 0.0, 0.0, ""
        super().__init__(port, "--port")
        self.url = f"http://{HOST}:{self.server_port}/"

    def respond(self, path: str) -> Answer:
        """Answer with the page, its changes or a picture. Raises UserError and OSError where they cannot be read."""
        address = urlsplit(path)
        with self._lock:
            if address.path == "/":
                html = render_html(self._refresh(), INTERVAL)
                return Answer(html.encode(), "text/html; charset=utf-8")
            if address.path == "/update":
                pairs = parse_qs(address.query).get("have", [""])[0].split(",")
                have = dict(pair.split(":", 1) for pair in pairs if ":" in pair)
                return Answer(json.dumps(self._changes(have), allow_nan=False).encode(), "application/json")
            picture = self._pictures.paths.get(address.path.lstrip("/"))
        if picture is None:
            return Answer(b"there is nothing here\n", status=HTTPStatus.NOT_FOUND)
        content, kind = load_picture(picture)
        return Answer(content, f"image/{kind}")

    def current_page(self) -> Page:
        """Make the page as the run is now, with the journal's lines since the last call. Not thread-safe.

        Raises UserError where the run's record cannot be read.
        """
        journal = self._folder.journal
        content: JournalContent | None = None
        with suppress(OSError):  # the page says why it cannot be read
            state = journal.stat()
            if state.st_ino != self._inode or state.st_size < self._content.end:
                self._content, self._inode = JournalContent(), state.st_ino
            for line in read_lines(journal, self._content.end):
                self._content.add(line)
            content = self._content
        if self._experiment is None:
            with suppress(UserError):  # the page says why
                self._experiment = load_recorded_experiment(self._folder.spec)
        return run_page(RunContent(self._home, self._folder, self._pictures, self._experiment, content))

    def _changes(self, have: Mapping[str, str]) -> dict[str, Any]:
        """Sections that are not as a browser has them, by their digests in `have`; and all keys in order."""
        page = self._refresh()
        rendered = [{"key": key, "html": html, "digest": digest_of(html)} for key, html in self._rendered.items()]
        now = time.strftime("%H:%M:%S")
        state = f"live: training, as of {now}" if page.status == "running" else f"as of {now}: not training"
        return {
            "title": page.title,
            "order": page.keys(),
            "sections": [each for each in rendered if have.get(each["key"]) != each["digest"]],
            "state": f"as it was before: {self._fault}" if self._fault else state,
            "kind": "lost" if self._fault else page.status,
        }

    def _refresh(self) -> Page:
        """Make the page again unless it is recent; a fault leaves the one before. Raises UserError without one."""
        if time.monotonic() - self._made < max(_LEAST_AGE, _SHARE * self._cost) and self._page is not None:
            return self._page
        begun = time.monotonic()
        try:
            page = self.current_page()
            self._rendered, self._page, self._fault = render_sections(page), page, ""
        except Exception as error:  # the next look may find the files whole again
            fault = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"
            if self._fault != fault:
                self._fault = fault
                self._warn(fault)
        self._made = time.monotonic()
        self._cost = self._made - begun
        if self._page is None:
            raise UserError(self._fault)
        return self._page
