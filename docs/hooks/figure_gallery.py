"""Pictures of a family in its guide: each file of docs/images/figures, with what docs/figures.md
says of its kind.
"""

import html
import posixpath
import re
from pathlib import Path

from ditlab.reports.page import read_description

FOLDER = "images/figures"
"""Folder of the pictures below docs/, named FAMILY-KIND."""
PICTURES = (".svg", ".png", ".gif")
_PLACE = re.compile(r"^<!-- figures of (?P<family>\w+) -->$", re.MULTILINE)


def show_figures(markdown: str, uri: str, docs: Path) -> str:
    """Put a family's pictures where a page has `<!-- figures of FAMILY -->`; but for those that it
    shows.
    """

    def pictures(found: re.Match[str]) -> str:
        files = [
            path for path in (docs / FOLDER).glob(f"{found['family']}-*") if path.suffix in PICTURES
        ]
        shown = [
            path
            for path in files
            if f"{FOLDER}/{path.name}" not in markdown and not path.stem.endswith("-dark")
        ]
        shown.sort(key=lambda path: (places.get(_kind(path), len(places)), path.name))
        return "\n".join(_picture(path, uri, meanings) for path in shown)

    meanings = kind_meanings(docs / "figures.md")
    places = {kind: place for place, kind in enumerate(meanings)}
    return _PLACE.sub(pictures, markdown)


def kind_meanings(page: Path) -> dict[str, str]:
    """Read what each kind shows from the tables of the page on figures, in their order."""
    meanings = {}
    for kinds, meaning in re.findall(
        r"^\| (`[^|]+) \| ([^|]+) \|", page.read_text(encoding="utf-8"), re.MULTILINE
    ):
        meanings.update(dict.fromkeys(re.findall(r"`([\w-]+)`", kinds), meaning))
    return meanings


def _kind(path: Path) -> str:
    return path.stem.partition("-")[2]


def _picture(path: Path, uri: str, meanings: dict[str, str]) -> str:
    """Write a picture with its alternative text: the one that it carries, else what its kind
    shows.
    """
    kind = _kind(path)
    meaning = meanings.get(kind, kind.replace("_", " "))
    text = read_description(path) or meaning
    address = posixpath.relpath(f"{FOLDER}/{path.name}", posixpath.dirname(uri) or ".")
    caption = f"<figcaption><code>{kind}</code>: {html.escape(meaning)}</figcaption>"
    image = f'<img src="{address}" alt="{html.escape(text, quote=True)}" loading="lazy">'
    # wide ones are read at their own size
    return f'\n<figure><a href="{address}">{image}</a>{caption}</figure>\n'
