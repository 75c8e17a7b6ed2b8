"""Loading specs, and counting what they describe. Imports torch on use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.parts import FileKind, SweepKind, load_part
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import (
    find_file_kind,
    is_sweep,
    load_experiment,
    read_with_parents,
    refuse_overrides,
    spec_name,
    validated,
)
from ditlab.spec.quick import (
    Quick,
    load_quick_experiment,
    load_quick_sweep,
    shorten_experiment,
    shorten_sweep,
)
from ditlab.spec.sweep import Sweep, find_sweep_kind
from ditlab.spec.sweep import load_sweep as read_sweep
from ditlab.spec.sweep_space import (
    check_sweep,
    enumerate_trials,
    experiment_for,
    typical_values,
    written,
)
from ditlab.tracking.records import find_run

if TYPE_CHECKING:
    from ditlab_models.parameters import ParameterCount
    from ditlab_models.shape_trace import ShapeRow

COMPARED = ("data", "model", "objective", "encoders")
"""Sections of a spec that decide whether its data fit."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Load an experiment's YAML with its parents (`extends`) and `overrides` (`optimizer.lr=1e-4`),
    and validate it. Raises UserError, naming file and field, for anything wrong in them."""
    return load_experiment(Path(path), overrides)


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Load a sweep's YAML with its base and `overrides` (`trials=4`), and check every axis against
    the experiment. Raises UserError, naming file and field, for anything wrong in them."""
    sweep = read_sweep(Path(path), overrides)
    check_sweep(sweep, spec_name(Path(path)))
    return sweep


def check_data(spec: Experiment | Sweep, path: Path) -> str:
    """Check that the data of an experiment, or of each trial of a sweep that is known beforehand,
    fit its model; return in a clause why data were not looked at, empty where they were.

    Only a store that is on this machine is looked at: none is written, none is fetched. Raises
    UserError as a training does, behind the name of the spec's file, `path`.
    """
    home = Home.from_environment()
    if isinstance(spec, Experiment):
        try:
            return _check_store(spec, home)
        except UserError as error:
            raise UserError(f"{spec_name(path)}: {error}") from None
    trials = enumerate_trials(spec)
    absent = ""
    checked = set[str]()
    for number, values in enumerate(trials or [typical_values(spec)]):
        compared = written(
            {field: value for field, value in values.items() if field.partition(".")[0] in COMPARED}
        )
        if compared in checked:
            continue
        checked.add(compared)
        try:
            absent = _check_store(experiment_for(spec, values), home) or absent
        except UserError as error:
            trial = f"trial {number} ({written(values)}): " if trials else ""
            raise UserError(f"{spec_name(path)}: {trial}{error}") from None
    return absent


def _check_store(experiment: Experiment, home: Home) -> str:
    """Check data as `check_store` does. Arrow is imported where a store may be: in the home, or at
    a path.
    """
    if experiment.data.kind not in ("arrow", "mixture") and not home.stores.is_dir():
        return f"{home.stores} holds no store yet"
    from ditlab.inputs.stored_fields import check_store

    return check_store(experiment, home)


@overload
def quick(spec: Experiment) -> Quick[Experiment]: ...
@overload
def quick(spec: Sweep) -> Quick[Sweep]: ...
@overload
def quick(spec: str | Path, overrides: Sequence[str] = ()) -> Quick[Any]: ...
def quick(spec: Experiment | Sweep | str | Path, overrides: Sequence[str] = ()) -> Quick[Any]:
    """Make a run of about a minute out of an experiment, or out of each of a few trials of a sweep,
    as `--quick` does.

    `spec` is a validated one or the path of its YAML, whose `overrides` stay as they are. The
    result's `spec` is the short one, its `changes` are the values before and after by path. Raises
    UserError for a spec that is wrong.
    """
    if isinstance(spec, Experiment):
        return shorten_experiment(validated(spec, overrides))
    if isinstance(spec, Sweep):
        refuse_overrides(overrides)
        return shorten_sweep(spec)
    path = Path(spec)
    if is_sweep(path):
        return load_quick_sweep(path, overrides)
    return load_quick_experiment(path, overrides)


def count_parameters(spec: Experiment) -> ParameterCount:
    """Count an experiment's parameters by component, on the meta device: no memory is taken,
    whatever the size. Raises UserError for a network or objective that cannot be built."""
    from ditlab.analysis.user_errors import building
    from ditlab_models.parameters import count_parameters as count

    with building():
        return count(spec.model, spec.objective, spec.training)


def trace_shapes(spec: Experiment, batch: int = 1) -> list[ShapeRow]:
    """Trace the forward pass of `batch` samples on the meta device: every module's input and output
    shapes.
    """
    from ditlab_models.shape_trace import trace_shapes as trace

    return trace(spec.model, batch)


def kind_of_sweep(sweep: Path | None, resume: str | None = None) -> SweepKind | None:
    """Return the kind of a file, or without one of the sweep that is resumed; None for one that
    trains, and for an experiment. Raises UserError for a file that cannot be read, for an unknown
    sweep, and where the add-on of its kind is not here."""
    if sweep is None:
        if resume in (None, "auto"):
            return None
        sweep = find_run(Home.from_environment(), str(resume)).folder.path / "sweep.yaml"
        if not sweep.exists():
            return None
    return find_sweep_kind(read_with_parents(sweep), spec_name(sweep))


def kind_of_file(path: Path) -> SweepKind | FileKind | None:
    """Return the kind of a file that an add-on or another package reads; None for an experiment,
    and for a sweep that trains. Raises UserError as `kind_of_sweep` does.
    """
    return find_file_kind(path) or kind_of_sweep(path)


def load_checked(
    path: Path, overrides: Sequence[str], kind: SweepKind | FileKind | None
) -> tuple[Any, str]:
    """Load and check an experiment or a sweep, and its data; return it, and what `check_data` says
    of the data.

    `kind` is that of a file that trains nothing itself, and has no data. Raises UserError.
    """
    if kind is not None:
        return load_part("kind of files", kind.name, kind.load)(path, overrides), ""
    spec = load_sweep(path, overrides) if is_sweep(path) else load(path, overrides)
    return spec, check_data(spec, path)
