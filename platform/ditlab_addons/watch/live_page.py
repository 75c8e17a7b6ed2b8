"""Pages served live on loopback, read only: of a run, from the journal, of which each look reads
only the new lines; and of files of add-ons.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.reports.page import Page, content_policy, environment, printable, render_html
from ditlab.runs.page import RunContent, run_page
from ditlab.runs.page_pictures import load_picture
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.tracking.journal import JournalContent, read_lines

INTERVAL = 2000
"""Milliseconds between a browser's questions for changes."""
_LEAST_AGE = 1.0
"""Seconds for which a page is not made again, however many browsers ask."""
TOP = "top"
"""Key of a page's head among its sections."""
HOST = "127.0.0.1"
REQUEST_TIMEOUT = 30.0
"""Seconds that a connection may say nothing."""
POLICY = (
    content_policy("'self' data:") + "; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
}


@dataclass(frozen=True)
class Answer:
    """Answer to a request."""

    content: bytes
    kind: str = "text/plain; charset=utf-8"
    """Its Content-Type."""
    status: HTTPStatus = HTTPStatus.OK


FOREIGN_NAME = Answer(
    b"this server answers to names of loopback alone\n", status=HTTPStatus.FORBIDDEN
)
NOTHING = Answer(b"there is nothing here\n", status=HTTPStatus.NOT_FOUND)


@dataclass
class LinkedPictures:
    """Pictures that a server sends on request."""

    most_steps: int = 200
    paths: dict[str, Path] = field(default_factory=dict)
    """File of each address that was given out."""

    def address(self, path: Path, share: int) -> str:
        """Address by which the picture is asked for. Raises OSError where it is not there."""
        stem = re.sub(r"[^A-Za-z0-9]+", "-", path.stem)[:80]
        name = f"pictures/{stem}-{path.stat().st_mtime_ns:x}{path.suffix}"
        self.paths[name] = path
        return name


class _LoopbackHandler(BaseHTTPRequestHandler):
    """Handler of GET and HEAD for a `PageServer`."""

    server: PageServer
    server_version = "ditlab"
    sys_version = ""
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
        for name, value in {**HEADERS, **own}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Print nothing for a request."""


def is_own_name(hosts: list[str]) -> bool:
    """Return True if a request's only Host names loopback; a name led here by DNS rebinding is
    refused.
    """
    if len(hosts) != 1:
        return False
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]@]+)(:[0-9]+)?", hosts[0].strip().lower())
    if found is None:
        return False
    host = found[1].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PageServer(ThreadingHTTPServer):
    """Server of a page that changes, with a thread for each request, of which none keeps the
    process alive.

    `serve_forever` answers until it is interrupted; closing it frees the port.
    """

    daemon_threads = True
    allow_reuse_address = True
    activity = "running"
    """Word for what goes on while the page's status is `running`."""
    run_id: str | None = None
    """Id of the run whose page it is."""

    def __init__(self, port: int, warn: Callable[[str], None]) -> None:
        """Listen on `port` of loopback; 0 takes a free one. Raises UserError for a port that cannot
        be listened on.
        """
        self._warn = warn
        self._pictures = LinkedPictures()
        self._lock = threading.Lock()
        self._page: Page | None = None
        self._rendered: dict[str, str] = {}
        self._digests: dict[str, str] = {}
        self._made = 0.0
        self._fault = ""
        try:
            super().__init__((HOST, port), _LoopbackHandler)
        except OSError as error:
            raise UserError(
                f"--port {port} on {HOST} cannot be listened on ({error.strerror}); give "
                "another port."
            ) from error
        self.url = f"http://{HOST}:{self.server_port}/"

    def current_page(self) -> Page:
        """Make the page as things are now. Not thread-safe. Raises UserError where they cannot be
        read.
        """
        raise NotImplementedError

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""

    def respond(self, path: str) -> Answer:
        """Answer with the page, its changes or a picture. Raises UserError and OSError where they
        cannot be read.
        """
        address = urlsplit(path)
        with self._lock:
            if address.path == "/":
                page = self._refresh()
                html = render_html(page, POLICY, INTERVAL, self._digests)
                return Answer(html.encode(), "text/html; charset=utf-8")
            if address.path == "/update":
                pairs = parse_qs(address.query).get("have", [""])[0].split(",")
                have = dict(pair.split(":", 1) for pair in pairs if ":" in pair)
                return Answer(
                    json.dumps(self._changes(have), allow_nan=False).encode(), "application/json"
                )
            picture = self._pictures.paths.get(address.path.lstrip("/"))
        if picture is None:
            return NOTHING
        content, kind = load_picture(picture)
        return Answer(content, f"image/{kind}")

    def _changes(self, have: Mapping[str, str]) -> dict[str, Any]:
        """Sections that are not as a browser has them, by their digests in `have`; and all keys in
        order.
        """
        page = self._refresh()
        changed = [key for key, digest in self._digests.items() if have.get(key) != digest]
        now = time.strftime("%H:%M:%S")
        kind: str = page.status
        state = f"as of {now}: not {self.activity}"
        if self._fault:
            kind = "lost"
            state = f"as it was before: {self._fault}"
        elif page.status == "running":
            state = f"live: {self.activity}, as of {now}"
        return {
            "title": page.title,
            "order": [key for key in self._rendered if key != TOP],
            "sections": [
                {"key": key, "html": self._rendered[key], "digest": self._digests[key]}
                for key in changed
            ],
            "state": state,
            "kind": kind,
        }

    def _refresh(self) -> Page:
        """Make the page again unless it is recent; a fault leaves the one before. Raises UserError
        without one.
        """
        if time.monotonic() - self._made < _LEAST_AGE and self._page is not None:
            return self._page
        try:
            page = self.current_page()
            self._rendered = _render_sections(page)
            self._digests = {
                key: hashlib.sha256(html.encode()).hexdigest()[:16]
                for key, html in self._rendered.items()
            }
            self._page = page
            self._fault = ""
        except Exception as error:  # the next look may find the files whole again
            fault = f"{type(error).__name__}: {first_line(error)}"
            if isinstance(error, UserError):
                fault = str(error)
            if self._fault != fault:
                self._fault = fault
                self._warn(fault)
        self._made = time.monotonic()
        if self._page is None:
            raise UserError(self._fault)
        return self._page


class LivePage(PageServer):
    """Server of a run's page."""

    activity = "training"

    def __init__(
        self, home: Home, folder: RunFolder, port: int, warn: Callable[[str], None]
    ) -> None:
        """As of `PageServer`."""
        super().__init__(port, warn)
        self._home = home
        self._folder = folder
        self.run_id = folder.run_id
        self._content = JournalContent()
        self._inode = 0
        self._experiment: Experiment | None = None

    def current_page(self) -> Page:
        """Make the page as the run is now, with the journal's lines since the last call. Not
        thread-safe.

        Raises UserError where the run's record cannot be read.
        """
        journal = self._folder.journal
        content: JournalContent | None = None
        with suppress(OSError):  # the page says why it cannot be read
            state = journal.stat()
            if state.st_ino != self._inode or state.st_size < self._content.end:
                self._content = JournalContent()
                self._inode = state.st_ino
            for line in read_lines(journal, self._content.end):
                self._content.add(line)
            content = self._content
        if self._experiment is None:
            with suppress(UserError):  # the page says why
                self._experiment = load_recorded_experiment(self._folder.spec)
        return run_page(
            RunContent(self._home, self._folder, self._pictures, self._experiment, content)
        )


class LiveFilePage(PageServer):
    """Server of the page of a file of an add-on (`ditlab.parts.FileKind.page`)."""

    def __init__(self, make: Callable[[], Page], port: int, warn: Callable[[str], None]) -> None:
        """`make` makes the page anew."""
        super().__init__(port, warn)
        self._make = make

    def current_page(self) -> Page:
        """Make the page anew."""
        return self._make()


def _render_sections(page: Page) -> dict[str, str]:
    """Render the inside of a page's head and of each of its sections, by key."""
    parts: Any = environment(html=True).get_template("parts.html.j2").make_module({"page": page})
    rendered = {TOP: parts.render_head(page)}
    for section in page.sections:
        rendered[section.key] = parts.render_section(section, section.key)
    return {key: printable(str(html)) for key, html in rendered.items()}
