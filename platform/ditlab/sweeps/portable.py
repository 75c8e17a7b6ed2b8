"""Portable sweeps: absolute paths and a tracking address, as workers run in other working directories."""

from contextlib import suppress
from typing import Any

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.runs.checks import absolute_paths
from ditlab.spec.reading.overrides import nested, value_at
from ditlab.spec.sweep.axes import Axis, Choice, Grid
from ditlab.spec.sweep.space import draw_values, enumerate_trials, experiment_for
from ditlab.spec.sweep.spec import Sweep
from ditlab.tracking.access import launch_address, resolve_tracking_uri


def portable_sweep(sweep: Sweep, home: Home, stored: Sweep | None = None) -> tuple[Sweep, str]:
    """Return the sweep with absolute paths, and the resolved tracking address.

    A tracking address of null becomes MLFLOW_TRACKING_URI, or, for a resumed sweep, the address in its `stored` spec,
    whatever the environment says now. Without either it stays null, so that DITLAB_HOME can be moved. Raises UserError
    for an address that holds a password.
    """
    uri = experiment_for(sweep, typical_values(sweep)).tracking.uri
    if uri is None and stored is not None:
        uri = stored.fixed.get("tracking.uri")
    address = launch_address(uri, home, environment=stored is None)
    fixed = {path: _absolute(path, value, home) for path, value in sweep.fixed.items()}
    if address is not None:
        fixed["tracking.uri"] = address
    space = {path: _absolute_axis(path, axis, home) for path, axis in sweep.space.items()}
    changed = {"base": absolute_paths(sweep.base, home), "fixed": fixed, "space": space}
    return sweep.model_copy(update=changed), resolve_tracking_uri(address, home)


def typical_values(sweep: Sweep) -> dict[str, Any]:
    """Choose values that make an experiment, for checks of the sweep as a whole.

    These are the first trial's where trials can be enumerated; else none, or the first value of each axis.
    """
    if values := enumerate_trials(sweep):
        return values[0]
    with suppress(UserError):
        experiment_for(sweep, {})
        return {}
    return draw_values(sweep.space, lambda _, axis: axis.ends()[0])


def _absolute(path: str, value: Any, home: Home) -> Any:
    """Make the paths in the value of a field or of a whole section absolute."""
    keys = path.split(".")
    return value_at(absolute_paths(nested(keys, value), home), keys)


def _absolute_axis(path: str, axis: Axis, home: Home) -> Axis:
    if not isinstance(axis, Choice | Grid):
        return axis
    return axis.model_copy(update={"values": tuple(_absolute(path, value, home) for value in axis.values)})
