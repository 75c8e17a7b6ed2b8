"""Tables that the keyboard reaches: the box in which a wide one scrolls needs something that takes the focus."""

import re

_TABLE = re.compile(r"<table(?=[\s>])(?![^>]*\btabindex=)")


def reach_tables(html: str) -> str:
    """Let every table take the focus, so that the arrow keys scroll it where it is wider than the page."""
    return _TABLE.sub('<table tabindex="0"', html)
