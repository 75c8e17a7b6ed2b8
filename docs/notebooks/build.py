"""Make the notebooks of this folder from their sources, one Python file each in the percent format.

    python docs/notebooks/build.py
        writes all notebooks; outputs stay where the code is the same
    python docs/notebooks/build.py --execute dit dlm
        executes these first, and writes them with their outputs

Needs the extra `dev`. Each trains for a minute or two on two CPU cores, in a home of its own, which
is removed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.name != Path(__file__).name)
MOST_SECONDS = 600
"""Longest time of one cell."""
_COLOURS = 256
"""Colours of a picture in a committed notebook."""
_MARK = re.compile(r"^# %%(?P<markdown> \[markdown\])?$", re.MULTILINE)


def read_source(name: str) -> Any:
    """The notebook of a source, without outputs."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    marks = list(_MARK.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        raise ValueError(f"{name}.py does not begin with a cell")
    cells = []
    for number, mark in enumerate(marks):
        end = marks[number + 1].start() if number + 1 < len(marks) else len(text)
        body = text[mark.end() : end].strip("\n")
        cell = new_markdown_cell(_uncommented(body)) if mark["markdown"] else new_code_cell(body)
        # the same for the same source
        cell["id"] = hashlib.sha256(f"{number}\n{body}".encode()).hexdigest()[:8]
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )


def execute(notebook: Any, home: Path) -> None:
    """Execute a notebook in this folder, with DITLAB_HOME at `home`. Raises CellExecutionError
    where a cell fails.
    """
    from nbclient import NotebookClient

    # threads of so small networks wait for each other more than they compute, on a busy machine
    # several times longer
    settings = {"DITLAB_HOME": str(home), "DEEPSPEED_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"}
    client = NotebookClient(
        notebook,
        timeout=MOST_SECONDS,
        resources={"metadata": {"path": str(FOLDER)}},
        record_timing=False,
    )
    client.execute(env={**os.environ, **settings})
    for cell in notebook.cells:
        cell["metadata"] = {}
        for output in cell.get("outputs", []):
            _tidy(output)


def write(name: str, notebook: Any) -> Path:
    """Write a notebook beside its source."""
    path = FOLDER / f"{name}.ipynb"
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook, version=4) + "\n", encoding="utf-8")
    return path


def keep_outputs(notebook: Any, path: Path) -> None:
    """Give a notebook the outputs of the one in `path`, if its code is the same."""
    if not path.is_file():
        return
    own, before = (
        [cell for cell in each.cells if cell["cell_type"] == "code"]
        for each in (notebook, nbformat.read(path, as_version=4))
    )
    if [cell["source"] for cell in own] == [cell["source"] for cell in before]:
        for cell, executed in zip(own, before, strict=True):
            cell["outputs"], cell["execution_count"] = (
                executed["outputs"],
                executed["execution_count"],
            )


def _uncommented(text: str) -> str:
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.split("\n"))


def _tidy(output: Any) -> None:
    """Keep the richest form of an output, and its pictures small."""
    data = output.get("data", {})
    if "text/html" in data:
        data.pop("image/png", None)
        data["text/html"] = re.sub(
            r"(?<=data:image/png;base64,)[\w+/=]+",
            lambda found: _small(found[0]),
            data["text/html"],
        )
    if "image/png" in data:
        data["image/png"] = _small(data["image/png"])
    if "text/html" in data or "image/png" in data:
        data.pop("text/plain", None)


def _small(png: str) -> str:
    """A PNG in base64 with few colours, if that is smaller."""
    from PIL import Image

    content = BytesIO()
    with Image.open(BytesIO(base64.b64decode(png))) as image:
        few = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        few.save(content, format="PNG", optimize=True)
    smaller = base64.b64encode(content.getvalue()).decode()
    return smaller if len(smaller) < len(png) else png


def main() -> None:
    """Write the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--execute", action="store_true", help="execute them, which takes minutes")
    options = parser.parse_args()
    names = options.names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(
            f"{', '.join(sorted(unknown))}: no such notebook; there are {', '.join(NAMES)}"
        )
    for name in names:
        notebook = read_source(name)
        if options.execute:
            with tempfile.TemporaryDirectory() as home:
                execute(notebook, Path(home))
        else:
            keep_outputs(notebook, FOLDER / f"{name}.ipynb")
        path = write(name, notebook)
        print(f"{path} ({path.stat().st_size / 1024:,.0f} KiB)", flush=True)


if __name__ == "__main__":
    main()
