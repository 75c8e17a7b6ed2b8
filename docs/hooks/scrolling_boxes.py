"""Boxes that the keyboard reaches: one that scrolls sideways has to take the focus, or to hold
something that does.
"""

import re

_BOX = re.compile(r'<table(?=[\s>])(?![^>]*\btabindex=)|<div class="(?:output|formula)"(?=>)')


def reach_boxes(html: str) -> str:
    """Let tables, formulas and outputs of notebooks take the focus, so that the arrow keys scroll
    them.
    """
    return _BOX.sub(lambda found: f'{found[0]} tabindex="0"', html)
