"""A sweep with absolute paths, as workers and later commands have other working directories."""

from contextlib import suppress
from typing import Any

from ditlab.cluster.preflight import absolute_paths
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.axes import Axis, Choice, Grid
from ditlab.spec.space import draw_values, enumerate_trials, experiment_for
from ditlab.spec.sweep import Sweep
from ditlab.tracking.address import redact, resolve_tracking_uri


def portable_sweep(sweep: Sweep, home: Home) -> tuple[Sweep, str]:
    """The same for any place, and the address where it is tracked.

    An address of null stays null, so that DITLAB_HOME can be moved. Raises UserError for one that holds a password.
    """
    uri = experiment_for(sweep, typical_values(sweep)).tracking.uri
    resolved = resolve_tracking_uri(uri, home)
    if redact(resolved) != resolved:
        raise UserError(
            f"tracking.uri={redact(resolved)} holds a password, which would be written into every checkpoint; "
            "give it by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
        )
    fixed = {path: _absolute(path, value, home) for path, value in sweep.fixed.items()}
    if uri is not None:
        fixed["tracking.uri"] = resolved
    space = {path: _absolute_axis(path, axis, home) for path, axis in sweep.space.items()}
    return sweep.model_copy(update={"base": absolute_paths(sweep.base, home), "fixed": fixed, "space": space}), resolved


def typical_values(sweep: Sweep) -> dict[str, Any]:
    """Values that make an experiment, for what is asked of a sweep as a whole: those of the first trial, if that is
    known; else none, or the first ones of each axis."""
    if values := enumerate_trials(sweep):
        return values[0]
    with suppress(UserError):
        experiment_for(sweep, {})
        return {}
    return draw_values(sweep.space, lambda _, axis: axis.ends()[0])


def _absolute(path: str, value: Any, home: Home) -> Any:
    """A field's value; a section's mapping likewise."""
    section, _, key = path.partition(".")
    if not key:
        return absolute_paths({section: value}, home)[section]
    return absolute_paths({section: {key: value}}, home)[section][key]


def _absolute_axis(path: str, axis: Axis, home: Home) -> Axis:
    if not isinstance(axis, Choice | Grid):
        return axis
    return axis.model_copy(update={"values": tuple(_absolute(path, value, home) for value in axis.values)})
