"""From files to an experiment: `extends`, `--set`, validation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for, validate_experiment
from ditlab.spec.reading.files import is_sweep, read_with_parents
from ditlab.spec.reading.overrides import apply_overrides


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that a YAML file and its parents describe, with `--set` overrides (`a.b=value`) on top.

    Raises UserError, naming file and knob, for anything wrong in them.
    """
    mapping = read_with_parents(path)
    _refuse_sweep(mapping, str(path))
    return build_experiment(apply_overrides(mapping, overrides, class_for), str(path))


def build_experiment(mapping: Mapping[str, Any], source: str) -> Experiment:
    """Validates a resolved mapping. Raises UserError with one line per mistake, each beginning with `source`."""
    _refuse_sweep(mapping, source)
    try:
        return validate_experiment(mapping)
    except UserError as error:
        raise UserError("\n".join(f"{source}: {line}" for line in str(error).splitlines())) from None


def _refuse_sweep(mapping: Mapping[str, Any], source: str) -> None:
    if is_sweep(mapping):
        raise UserError(f"{source}: a file with `base` is a sweep; name an experiment, or use `ditlab tune`.")
