"""Text samples as a file, in full length, where a picture shows only their beginnings."""

from pathlib import Path

from denoisers.figures import Figure, Text
from ditlab.storage.files import write_whole


def save_text(figure: Figure, path: Path) -> Path | None:
    """Write a figure's texts to `path` (UTF-8), each under its number; write nothing and return None if it has none.

    Raises OSError where the disk refuses.
    """
    panels = [panel for panel in figure.panels if isinstance(panel, Text)]
    if not panels:
        return None
    parts = []
    for panel in panels:
        parts += [panel.title] if panel.title else []
        parts += [f"--- {number} ---\n{passage}" for number, passage in enumerate(panel.passages, start=1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, ("\n\n".join(parts) + "\n").encode())
