"""Pictures of a family in its guide: each file of docs/images/figures, with what docs/figures.md says of its kind."""

import html
import posixpath
import re
from pathlib import Path

FOLDER = "images/figures"
"""Folder of the pictures below docs/, named FAMILY-KIND."""
PICTURES = (".svg", ".png", ".gif")
_PLACE = re.compile(r"^<!-- figures of (?P<family>\w+) -->$", re.MULTILINE)


def show_figures(markdown: str, uri: str, docs: Path) -> str:
    """Put a family's pictures where a page has `<!-- figures of FAMILY -->`; but for those that it shows."""

    def pictures(found: re.Match[str]) -> str:
        files = sorted(path for path in (docs / FOLDER).glob(f"{found['family']}-*") if path.suffix in PICTURES)
        shown = [path for path in files if f"{FOLDER}/{path.name}" not in markdown and not path.stem.endswith("-dark")]
        return "\n".join(_picture(path, found["family"], uri, meanings) for path in shown)

    meanings = kind_meanings(docs / "figures.md")
    return _PLACE.sub(pictures, markdown)


def kind_meanings(page: Path) -> dict[str, str]:
    """Read what each kind shows from the table of the page on figures."""
    meanings = {}
    for kinds, meaning in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", page.read_text(encoding="utf-8"), re.MULTILINE):
        meanings.update(dict.fromkeys(re.findall(r"`(\w+)`", kinds), meaning))
    return meanings


def _picture(path: Path, family: str, uri: str, meanings: dict[str, str]) -> str:
    """Write a picture with its alternative text: an SVG's own description, else what its kind shows."""
    kind = path.stem.removeprefix(f"{family}-")
    meaning = meanings.get(kind, kind.replace("_", " "))
    text = _described(path) or meaning
    address = posixpath.relpath(f"{FOLDER}/{path.name}", posixpath.dirname(uri) or ".")
    caption = f"<figcaption><code>{kind}</code>: {html.escape(meaning)}</figcaption>"
    return f'\n<figure><img src="{address}" alt="{html.escape(text, quote=True)}" loading="lazy">{caption}</figure>\n'


def _described(path: Path) -> str:
    if path.suffix != ".svg":
        return ""
    found = re.search(r"<desc>([^<]*)</desc>", path.read_text(encoding="utf-8"))
    return html.unescape(found[1]) if found else ""
