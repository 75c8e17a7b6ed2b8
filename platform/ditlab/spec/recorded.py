"""Specs that are kept with a run: their last line is their hash, so that an edit by hand is noticed, and said."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment
from ditlab.spec.reading.edits import warn_of_edit
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.storage.files import is_as_stamped, stamped
from ditlab.storage.plain_files import MIB, UnusableFile, read_plain

SpecT = TypeVar("SpecT")


def encode_recorded(mapping: Mapping[str, Any]) -> bytes:
    """The YAML of a resolved spec, with its hash in the last line."""
    return stamped(dump_yaml(mapping)).encode()


def load_recorded_experiment(path: Path) -> Experiment:
    """The experiment in a run's `spec.yaml`. Raises UserError as `load_recorded`; logs a warning after an edit."""
    return load_recorded(path, load_experiment)


def load_recorded(path: Path, load: Callable[[Path], SpecT]) -> SpecT:
    """Load a spec of a run with `load`. Logs a warning after an edit.

    Raises UserError as `load` does, for a link in the file's place, and with the reason for a file that is as DiTLab
    wrote it and cannot be loaded: a newer version wrote it.
    """
    try:
        content = read_plain(path, MIB)
        warn_of_edit(path, content)
    except UnusableFile as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); put the run's own file there.") from None
    except OSError:
        return load(path)  # says what is wrong
    try:
        return load(path)
    except UserError as error:
        if not is_as_stamped(content):
            raise
        mistake = str(error).splitlines()[0].removeprefix(f"{path}: ").split(";")[0].rstrip(".")
        raise UserError(
            f"{path}: was written by a DiTLab, or with packages, newer than those here ({mistake}); open the run with "
            "them."
        ) from None
