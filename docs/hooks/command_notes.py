"""Notes on commands that no test runs: comments in the Markdown, shown on the site.

`<!-- not run: REASON -->` before a block of commands speaks of that block, `<!-- not run on this page: REASON -->` of
all blocks of a page. tests/test_document_commands.py reads the same comments.
"""

import re

_NOTE = re.compile(r"^<!-- not run(?P<page> on this page)?: (?P<reason>.*?) -->$", re.MULTILINE | re.DOTALL)


def show_notes(markdown: str) -> str:
    """Write the comments as paragraphs."""
    return _NOTE.sub(_paragraph, markdown)


def _paragraph(found: re.Match[str]) -> str:
    reason = " ".join(found["reason"].split()).rstrip(".")
    these = "the commands of this page" if found["page"] else "the commands below"
    what = f"A test reads {these} and knows each option, and does not run them"
    return f'\n<p class="not-run">{what}: {reason}.</p>\n'
