"""Shrunken twin of a large experiment: the same structure, engine and precision, of less width, depth and batch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from denoisers.parameter_counts import count_parameters
from ditlab.errors import UserError
from ditlab.planning.flops import step_flops
from ditlab.spec.experiment import Experiment

MOST_PARAMETERS = 6_000_000
"""Parameters up to which an experiment is proved as it is: all that is compared of them takes about a gigabyte."""
MOST_FLOPS = 2e11
"""Floating-point operations of a step up to which it is: some ten such steps, seconds to a minute on a CPU."""
LEAST_WIDTH, LEAST_DEPTH = 16, 2
"""Below which no width and no depth of a twin goes."""
MOST_PASSES, MOST_SAMPLES = 2, 4
"""Micro-batches of a worker, and samples of each, that the batch of a twin goes down to."""


@dataclass(frozen=True)
class Twin:
    """An experiment to prove, and what was made smaller."""

    experiment: Experiment
    changes: Mapping[str, Any]
    """Fields by dotted path; empty where the experiment itself is small enough."""
    parameters: int
    """Parameters of the experiment that it stands for."""

    def describe(self) -> str:
        """Return what was made smaller, in words; empty for nothing."""
        if not self.changes:
            return ""
        changed = ", ".join(f"{path}={value}" for path, value in self.changes.items())
        own = count_parameters(self.experiment.model, self.experiment.objective).total
        return f"{self.parameters:,} parameters are many: proved on a twin of {own:,} ({changed})."


def twin_of(experiment: Experiment) -> Twin:
    """Return the experiment itself where it is small; else with widths, depths and batch halved until it is small.

    Only changes that the spec accepts and that leave the fields of a batch alone are made, so that the same data fit.
    """
    parameters = count_parameters(experiment.model, experiment.objective).total
    if is_small(experiment):
        return Twin(experiment, {}, parameters)
    changes: dict[str, Any] = {}
    for names, least in ((_WIDTHS, LEAST_WIDTH), (_DEPTHS, LEAST_DEPTH)):
        changes |= _halved(experiment, changes, names, least)
    found = _changed(experiment, changes) or experiment
    if not is_small(found):
        changes |= _small_batch(found)
        found = _changed(experiment, changes) or found
    return Twin(found, changes, parameters)


def is_small(experiment: Experiment) -> bool:
    """Return True if an experiment is proved as it is, by its parameters and the operations of its step."""
    parameters = count_parameters(experiment.model, experiment.objective).total
    return parameters <= MOST_PARAMETERS and step_flops(experiment).model <= MOST_FLOPS


_WIDTHS, _DEPTHS = ("width", "widths"), ("depth",)


def _halved(experiment: Experiment, changes: Mapping[str, Any], names: tuple[str, ...], least: int) -> dict[str, Any]:
    """Return the model's fields of such names, halved as often as the spec accepts, until the experiment is small.

    All together first, as widths depend on one another; then each alone, as far as it goes.
    """
    fields = {
        path: value
        for path, value in _numbers(experiment)
        if path.rpartition(".")[2].rpartition("_")[2] in names and max(_values(value)) > least
    }
    found: dict[str, Any] = {}
    current = dict(fields)
    for group in (list(fields), *([path] for path in fields)):
        while True:
            tried = {path: _half(current[path]) for path in group}
            if any(max(_values(value)) < least for value in tried.values()) and len(group) == 1:
                break
            tried = {path: value for path, value in tried.items() if max(_values(value)) >= least or len(group) > 1}
            proposal = {**changes, **found, **tried}
            smaller = _changed(experiment, proposal)
            if smaller is None or tried == {path: current[path] for path in tried}:
                break
            current |= tried
            found |= tried
            if is_small(smaller):
                return found
    return found


def _numbers(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    """Yield the model's fields of whole numbers, and of tuples of them."""
    for name, value in experiment.to_dict()["model"].items():
        values = value if isinstance(value, list) else [value]
        if values and all(isinstance(each, int) and not isinstance(each, bool) for each in values):
            yield f"model.{name}", value


def _values(value: Any) -> list[int]:
    return value if isinstance(value, list) else [value]


def _half(value: Any) -> Any:
    halves = [max(1, each // 2) for each in _values(value)]
    return halves if isinstance(value, list) else halves[0]


def _changed(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment | None:
    """Return the experiment with changes; None where the spec, the network or the batch's fields refuse them."""
    if not changes:
        return None
    try:
        found = experiment.replace_all(changes)
        count_parameters(found.model, found.objective)
    except (UserError, ValueError, AssertionError, RuntimeError):
        return None
    return found if found.batch_fields() == experiment.batch_fields() else None


def _small_batch(experiment: Experiment) -> dict[str, Any]:
    """Return a batch of few samples with as many workers, that still accumulates where the experiment does."""
    passes = min(MOST_PASSES, experiment.accumulation)
    size = min(MOST_SAMPLES, experiment.micro_size)
    changes = {"batch.size": passes * size * experiment.resources.max_workers}
    return changes | ({"batch.micro": size} if experiment.batch.micro else {})
