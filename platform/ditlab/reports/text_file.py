"""Text samples, captions and tables as files, in full length, where a picture shows only their
beginnings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ditlab.storage.files import replacing, write_whole
from ditlab_models.figures import Figure, ImageGrid, Text

_LONGEST_LABEL = 3
"""Characters of a class label, which a picture shows well enough; a longer caption is words."""


def save_text(figure: Figure, path: Path) -> Path | None:
    """Write a figure's numbered texts in UTF-8; returns None if it has none. Raises OSError where
    the disk refuses.
    """
    panels = [panel for panel in figure.panels if isinstance(panel, Text)]
    if not panels:
        return None
    parts = []
    for panel in panels:
        if panel.title:
            parts.append(panel.title)
        parts += [
            f"--- {number} ---\n{passage}" for number, passage in enumerate(panel.passages, start=1)
        ]
    return write_whole(path, ("\n\n".join(parts) + "\n").encode())


def read_texts(path: Path) -> list[str]:
    """Read the texts of the first panel that `save_text` wrote. Raises OSError."""
    text = path.read_text(encoding="utf-8", errors="replace")
    parts = text.removesuffix("\n").split("--- 1 ---\n")
    if len(parts) == 1:
        return []
    first = parts[1]
    if len(parts) > 2:  # behind it stands the title of the next panel
        first = first.rstrip("\n").rpartition("\n\n")[0]
    return re.split(r"\n\n--- \d+ ---\n", first)


def save_captions(figure: Figure, path: Path) -> Path | None:
    """Write captions that are words to `path`, one a line; None without any. Raises OSError where
    the disk refuses.
    """
    captions: list[str] = []
    for panel in figure.panels:
        if isinstance(panel, ImageGrid):
            captions += panel.captions
    if not any(len(caption) > _LONGEST_LABEL for caption in captions):
        return None
    lines = "".join(f"{' '.join(caption.split())}\n" for caption in captions)
    return write_whole(path, lines.encode(errors="replace"))


def save_table(
    columns: Mapping[str, np.ndarray], path: Path, facts: Mapping[str, Any] | None = None
) -> Path:
    """Write columns of one length, `facts` as metadata `ditlab` (JSON). Raises OSError where the
    disk refuses.
    """
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if facts:
        table = table.replace_schema_metadata({"ditlab": json.dumps(facts)})
    with replacing(path) as file:
        pq.write_table(table, file)
    return path
