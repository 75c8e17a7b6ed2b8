"""Classes of samples by their names in the data that a run was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ditlab.analysis.sampling.options import SampleOptions
from ditlab.analysis.saved_run import SavedRun
from ditlab.errors import UserError

LABEL = "label"
"""Column of classes."""
_MOST_NAMES = 30


def with_class_number(options: SampleOptions, saved: SavedRun) -> SampleOptions:
    """Put a class's number in the place of its name. Raises UserError for a name that the run's data do not have."""
    if not isinstance(options.label, str):
        return options
    column = saved.data().train.columns.get(LABEL)
    return replace(options, label=class_number(options.label, column.names if column is not None else ()))


def class_number(name: str, names: Sequence[str]) -> int:
    """Return the number of a class. Raises UserError for an unknown name."""
    if name in names:
        return list(names).index(name)
    if not names:
        raise UserError(f"--label {name}: this run's data have no names of classes; give the class's number.")
    listed = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    raise UserError(f"--label {name} is no class of this run's data; their names are {listed}{more}.")
