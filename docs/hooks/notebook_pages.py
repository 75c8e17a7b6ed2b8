"""Pages of the notebooks, made from their `.ipynb` files: text, code, and outputs where there are
any.
"""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ALT = "a picture that this cell shows"


def notebook_pages(docs: Path) -> dict[str, str]:
    """Return a page for each notebook of docs/notebooks, by its address."""
    found = {}
    for path in sorted((docs / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        note = f"*This page is [{path.name}]({path.name}): download it, and run it in a checkout.*"
        parts = [part for cell in notebook["cells"] for part in _parts(cell)]
        found[f"notebooks/{path.stem}.md"] = "\n\n".join([parts[0], note, *parts[1:]]) + "\n"
    return found


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        title, _, rest = source.partition("\n")
        links = re.compile(r"(?<=\]\()([\w-]+)\.ipynb(?=\))")
        yield links.sub(r"\1.md", title)
        if rest:
            yield links.sub(r"\1.md", rest.strip("\n"))
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield _output(output)


def _output(output: dict[str, Any]) -> str:
    """One output: HTML as it is, a picture with its alternative text, or plain text."""
    data = output.get("data", {})
    if "text/html" in data:
        # a blank line would end the block of HTML for Markdown
        lines = "".join(data["text/html"]).replace("\n\n", "\n&#8203;\n")
        return f'<div class="output">{lines}</div>'
    if "image/png" in data:
        alternative = html.escape(
            output.get("metadata", {}).get("image/png", {}).get("alt") or _ALT
        )
        png = "".join(data["image/png"]).replace("\n", "")
        return (
            f'<div class="output"><img alt="{alternative}" src="data:image/png;base64,{png}"></div>'
        )
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f'<div class="output"><pre>{html.escape(text.rstrip())}</pre></div>'
