"""Headless Chromium on pages: pictures of them, and the faults that a visitor would meet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NARROW, WIDE = 400, 1280
"""Widths in pixels: a telephone, a laptop."""
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
"""axe-core's rules: contrast, alternative texts, names of controls, languages, headings (WCAG 2.1,
levels A and AA).
"""

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
SETTLING = 200
"""Milliseconds that a page has to draw itself after it was loaded or its width changed."""


def find_chromium() -> str | None:
    """Path of the browser: the variable CHROMIUM, or the first of `NAMES` on the PATH.

    None where there is none, or nothing to steer it (the extra `browser`).
    """
    if find_spec("playwright") is None:
        return None
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser, closed at the end. Raises RuntimeError where none is installed."""
    found = find_chromium()
    if found is None:
        raise RuntimeError(
            "no Chromium, or no playwright to steer it: install Debian's package `chromium` or "
            f"set CHROMIUM, and `pip install '.[browser]'`; looked for {NAMES}"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page that is open, and what went wrong on it."""

    page: Page
    address: str
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("request", self._on_request)
        self.page.on("response", self._on_response)
        self.page.on(
            "requestfailed", lambda request: self.faults.append(f"no answer: {request.url[:200]}")
        )

    def save(self, path: Path, whole: bool = False) -> Path:
        """Save a picture of the window, or of the whole page, and return its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=whole, animations="disabled")
        return path

    def inaccessible(self) -> list[str]:
        """Violations of `RULES`, one line for each element, at most five a rule."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page, options=RULES).response["violations"]
        return [
            f"{rule['id']}: {' '.join(node['target'])}: {node.get('failureSummary', '')[:300]}"
            for rule in found
            for node in rule["nodes"][:5]
        ]

    def too_wide(self) -> list[str]:
        """Elements that make the page scroll sideways; those inside a box with a scroll bar of its
        own do not.
        """
        excess = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if excess <= 0:
            return []
        wide = self.page.evaluate(
            """() => {
                const edge = document.documentElement.clientWidth + 1
                const scrolls = each => each && each !== document.body && each !== document.documentElement &&
                    (getComputedStyle(each).overflowX !== 'visible' || scrolls(each.parentElement))
                return [...document.querySelectorAll('body *')]
                    .filter(each => each.getBoundingClientRect().right > edge && !scrolls(each.parentElement))
                    .slice(0, 5).map(each => each.tagName + '.' + each.className)
            }"""
        )
        return [f"{excess} pixels wider than the window: {', '.join(map(str, wide))}"]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text[:300]}")

    def _on_request(self, request: Request) -> None:
        there, here = urlsplit(request.url), urlsplit(self.address)
        if there.scheme in ("http", "https", "ws", "wss") and there.netloc != here.netloc:
            self.faults.append(f"loaded from elsewhere: {request.url[:200]}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"status {response.status}: {response.url[:200]}")


@contextmanager
def visit(
    browser: Browser,
    address: str,
    width: int = WIDE,
    theme: Theme = "light",
    height: int = 900,
    script: str = "",
) -> Iterator[Visit]:
    """Open an address, http:// or file://, and wait until it is loaded; `script` runs before those
    of the page.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, locale="en-GB"
    )
    try:
        if script:
            context.add_init_script(script)
        made = Visit(context.new_page(), address)
        made.page.goto(address, wait_until="load", timeout=120_000)
        yield made
    finally:
        context.close()


def faults_of(browser: Browser, address: str) -> list[str]:
    """Everything wrong with one of DiTLab's own pages, in both themes and at both widths."""
    found: list[str] = []
    for theme in THEMES:
        with visit(browser, address, WIDE, theme) as one:
            one.page.wait_for_timeout(SETTLING)
            found += [
                f"{theme}, {WIDE} pixels: {fault}" for fault in one.too_wide() + one.inaccessible()
            ]
            one.page.set_viewport_size({"width": NARROW, "height": 900})
            one.page.wait_for_timeout(SETTLING)
            found += [f"{theme}, {NARROW} pixels: {fault}" for fault in one.too_wide()]
            found += [f"{theme}: {fault}" for fault in one.faults]
    return found
