"""Training runs of a home, opened as the commands open them."""

from collections.abc import Callable

from ditlab.analysis.opened_run import OpenedRun, open_found
from ditlab.home import Home
from ditlab.tracking.records import find_training_run


def open_training_run(text: str, home: Home, warn: Callable[[str], None]) -> OpenedRun:
    """Open the training run that `text` names."""
    return open_found(find_training_run(home, text), home, warn)
