"""Notes on commands that no test runs: comments in the Markdown, which readers do not need and the
site leaves out.

`<!-- not run: REASON -->` before a block of commands speaks of that block, `<!-- not run on this
page: REASON -->` of all blocks of a page. tests/test_document_commands.py reads the same comments.
"""

import re

_NOTE = re.compile(
    r"^<!-- not run(?P<page> on this page)?: (?P<reason>.*?) -->$", re.MULTILINE | re.DOTALL
)


def leave_out_notes(markdown: str) -> str:
    """Leave the comments out."""
    return _NOTE.sub("", markdown)
