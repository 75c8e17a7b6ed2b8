"""Edits of YAML that DiTLab wrote: its last line is the hash of those above, so that a change is noticed, and said."""

import logging
from pathlib import Path

from ditlab.storage.files import is_edited

_log = logging.getLogger("ditlab.spec")
_said: set[Path] = set()


def warn_of_edit(path: Path, content: bytes) -> None:
    """Log a warning, once a process, where a file's content was changed since DiTLab wrote it."""
    if path not in _said and is_edited(content):
        _said.add(path)
        _log.warning("%s was changed since DiTLab wrote it, by hand or by damage; it counts as it is now", path)
