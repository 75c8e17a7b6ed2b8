"""Checks of a built site: links and anchors lead somewhere, nothing is loaded from elsewhere,
pictures have texts.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "track": ("src",),
    "input": ("src",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
    "form": ("action",),
}
"""Attributes by which an element loads a file."""
LINK_RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}
"""Relations of `<link>` by which a browser asks another place for something."""
STYLE_ADDRESS = re.compile(r"url\(\s*['\"]?(?P<url>[^)'\"]+)|@import\s+['\"](?P<import>[^'\"]+)")
HOST = re.compile(
    r"^(localhost|\d+(\.\d+){3}|([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,})(:\d+)?$", re.IGNORECASE
)


class BuiltPage(HTMLParser):
    """Addresses, anchors and faults of one page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.faults: list[str] = []
        self._in_style = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element's addresses."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.loads += [
            given[name].split()[0] for name in LOADS.get(tag, ()) if given.get(name, "").strip()
        ]
        self.loads += [
            found["url"] or found["import"]
            for found in STYLE_ADDRESS.finditer(given.get("style", ""))
        ]
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and LINK_RELATIONS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        if tag == "img" and not given.get("alt", "").strip():
            self.faults.append(f"{given.get('src')} has no alternative text")
        if "mermaid" in given.get("class", "").split():
            self.faults.append("a mermaid diagram, whose script would come from elsewhere")
        if tag in ("span", "div") and "arithmatex" in given.get("class", "").split():
            self.faults.append("a formula that is no MathML")
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        """Collect the addresses of a style sheet in the page."""
        if self._in_style:
            self.loads += [
                found["url"] or found["import"] for found in STYLE_ADDRESS.finditer(data)
            ]

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a style sheet."""
        self._in_style = False


def find_faults(site: Path) -> list[str]:
    """Return a line for each fault of the pages and style sheets in a folder."""
    pages = {
        path: BuiltPage(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))
    }
    faults = [
        f"{path.relative_to(site)}: {fault}"
        for path, page in pages.items()
        for fault in page.faults
    ]
    for path, page in pages.items():
        where = path.relative_to(site)
        faults += [f"{where}: loads {address}" for address in page.loads if _is_elsewhere(address)]
        if path.name == "404.html":  # its addresses are absolute, as it stands in for every address
            continue
        local = [address for address in (*page.links, *page.loads) if not _is_elsewhere(address)]
        faults += [
            f"{where}: {fault}"
            for address in local
            if (fault := _local_fault(address, path, pages, site))
        ]
        faults += [
            f"{where}: {fault}" for address in page.links if (fault := _outer_fault(address))
        ]
    for path in sorted(site.rglob("*.css")):
        for found in STYLE_ADDRESS.finditer(path.read_text(encoding="utf-8")):
            if _is_elsewhere(address := found["url"] or found["import"]):
                faults.append(f"{path.relative_to(site)}: loads {address}")
    return list(dict.fromkeys(faults))


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _local_fault(address: str, path: Path, pages: dict[Path, BuiltPage], site: Path) -> str | None:
    """Say what is wrong with a link within the site."""
    parts = urlsplit(address)
    if parts.scheme == "data":
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file() or not target.is_relative_to(site.resolve()):
        return f"{address} leads nowhere"
    anchor = unquote(parts.fragment)
    if (
        anchor
        and target in pages
        and anchor not in pages[target].anchors
        and not anchor.startswith("__")
    ):
        return f"{address}: no such anchor"
    return None


def _outer_fault(address: str) -> str | None:
    """Say what is wrong with the form of a link to another place."""
    parts = urlsplit(address)
    if not _is_elsewhere(address) or parts.scheme == "mailto":
        return None
    if parts.scheme not in ("http", "https"):
        return f"{address}: links are http or https"
    if not HOST.match(parts.netloc) or re.search(r"[\s<>\"]", address):
        return f"{address} is no address"
    return None
