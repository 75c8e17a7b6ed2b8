"""The built site in a browser: nothing from elsewhere, no console error, readable contrast, 400
pixels wide, search.
"""

import functools
import http.server
import os
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.chromium import chromium, faults_of, find_chromium, visit
from support.documents import build_site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        find_chromium() is None, reason="no Chromium here, or no playwright to steer it"
    ),
]


class QuietRequests(http.server.SimpleHTTPRequestHandler):
    """Answers without a line for each."""

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; the variable DITLAB_BUILT_SITE names one that was built before."""
    if built := os.environ.get("DITLAB_BUILT_SITE"):
        return Path(built)
    return build_site(tmp_path_factory.mktemp("built") / "site")


@contextmanager
def on_loopback(folder):
    """Serve a folder; its address."""
    handler = functools.partial(QuietRequests, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def address(site):
    with on_loopback(site) as address:
        yield address


def pages_of(site):
    """Every page of the site, but of the many that show a file of code or YAML one each."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        page = path.relative_to(site).as_posix()
        is_of_file = page.endswith((".py.html", ".yaml.html"))
        pages[path.suffixes[0] if is_of_file else page] = page
    return list(pages.values())


def test_no_page_has_a_fault_in_either_theme_and_at_either_width(site, address):
    pages = pages_of(site)
    assert len(pages) > 40
    found = []
    with chromium() as browser:
        for page in pages:
            found += [f"{page}: {fault}" for fault in faults_of(browser, f"{address}/{page}")]
    assert not found, "\n".join(found)


def test_search_finds_a_page(address):
    with chromium() as browser, visit(browser, f"{address}/index.html") as one:
        one.page.fill("input.md-search__input", "score entropy")
        one.page.wait_for_selector(".md-search-result__item a", timeout=60_000)
        links = one.page.eval_on_selector_all(
            ".md-search-result__item a", "all => all.map(each => each.href)"
        )
        assert any("families/dlm.html" in link for link in links)
        assert not one.faults


PLANTED = {
    '<img src="missing.png" alt="a picture">': "status 404",
    '<img src="../images/dit.png">': "image-alt",
    '<p style="color: #ccc; background: #fff">pale</p>': "color-contrast",
    '<div style="width: 900px">wide</div>': "pixels wider than the window",
    "<script>console.error('broken')</script>": "console: broken",
    "<script>nowhere()</script>": "exception: nowhere is not defined",
    '<script src="http://127.0.0.1:9/a.js"></script>': "loaded from elsewhere",
}
"""Faults of a page, and what each is called."""


def test_planted_faults_are_found(tmp_path):
    (tmp_path / "images").mkdir()
    page = tmp_path / "index.html"
    with on_loopback(tmp_path) as address, chromium() as browser:
        for planted, name in {"": "", **PLANTED}.items():
            page.write_text(
                '<!doctype html><html lang="en"><head><title>A page</title><link rel="icon" href="data:,">'
                f"</head><body><main><h1>A page</h1>{planted}</main></body></html>"
            )
            found = faults_of(browser, f"{address}/index.html")
            assert any(name in fault for fault in found) if name else not found, (planted, found)
