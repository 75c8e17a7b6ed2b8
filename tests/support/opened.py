"""Training runs of a home, opened as the commands open them."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from ditlab.analysis.opened_run import OpenedRun, open_found
from ditlab.home import Home
from ditlab.tracking.records import find_training_run


def open_training_run(text: str, home: Home, warn: Callable[[str], None]) -> OpenedRun:
    """Open the training run that `text` names."""
    return open_found(find_training_run(home, text), home, warn)


def file_states(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the time of change and the hash of every file below a folder, and the time of every
    folder.
    """
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in [folder, *sorted(folder.rglob("*"))]
    }
