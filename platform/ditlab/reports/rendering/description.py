"""The alternative text that a picture of DiTLab carries in its file: written into PNGs, read from PNGs and SVGs."""

from __future__ import annotations

import html
import re
from io import BytesIO
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ditlab.storage.plain_files import MIB, read_plain

LARGEST_PICTURE = 64 * MIB
_MOST_CHARACTERS = 1000
_DESC = re.compile(r"<desc>([^<]*)</desc>")


def png_texts(title: str, description: str) -> PngInfo:
    """Text chunks of a PNG with its title and its alternative text."""
    texts = PngInfo()
    texts.add_itxt("Title", title)
    texts.add_itxt("Description", description)
    return texts


def read_description(path: Path) -> str:
    """Read a picture's alternative text: an SVG's `<desc>`, a PNG's `Description`; "" where it has none.

    A damaged file, one of another format, and a link have none.
    """
    text, suffix = "", path.suffix.lower()
    try:
        content = read_plain(path, LARGEST_PICTURE)
        if suffix == ".svg" and (found := _DESC.search(content[:MIB].decode(errors="replace"))):
            text = html.unescape(found[1])
        elif suffix == ".png":
            with Image.open(BytesIO(content)) as image:  # reads what stands before the pixels
                text = str(image.info.get("Description", ""))
    except (OSError, ValueError, SyntaxError):  # Pillow raises all three for damaged files
        return ""
    return " ".join(text.split())[:_MOST_CHARACTERS]
