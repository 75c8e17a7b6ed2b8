"""Specs that are kept with a run: their last line is their hash, so that an edit by hand is noticed, and said."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.storage.checksums import is_edited, stamped
from ditlab.storage.plain_files import MIB, read_plain

_log = logging.getLogger("ditlab.spec")
_said: set[Path] = set()


def encode_recorded(mapping: Mapping[str, Any]) -> bytes:
    """The YAML of a resolved spec, with its hash in the last line."""
    return stamped(dump_yaml(mapping)).encode()


def load_recorded_experiment(path: Path) -> Experiment:
    """The experiment in a run's `spec.yaml`. Raises UserError as `load_experiment`; logs a warning after an edit."""
    warn_of_edit(path)
    return load_experiment(path)


def warn_of_edit(path: Path) -> None:
    """Log a warning, once a process, where a file was changed since `encode_recorded`."""
    with suppress(OSError):
        if path not in _said and is_edited(read_plain(path, MIB)):
            _said.add(path)
            _log.warning("%s was changed since DiTLab wrote it, by hand or by damage; it counts as it is now", path)
