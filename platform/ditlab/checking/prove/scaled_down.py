"""Scaled-down spec of a large experiment: the same structure, engine and precision, of less width, depth and batch."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from denoisers.parameters import count_parameters
from ditlab.errors import UserError
from ditlab.planning.flops import step_flops
from ditlab.spec.experiment import Experiment

MOST_PARAMETERS = 6_000_000
"""Parameters up to which an experiment is proved as it is: all that is compared of them takes about a gigabyte."""
MOST_FLOPS = 2.5e11
"""Floating-point operations of a step up to which it is: some ten such steps, seconds to a minute on a CPU."""
LEAST_WIDTH, LEAST_DEPTH = 16, 2
"""Below which no width and no depth goes."""
MOST_PASSES, SAMPLES = 2, (4, 2, 1)
"""Micro-batches of a worker that the batch goes down to, and samples of each, until the spec is small."""
_WIDTHS, _DEPTHS = ("width", "heads"), ("depth", "block")
"""Last words of the fields that are halved; `objective.alignment_block` is the number of one of `model.patch_depth`."""
_DOWN_TO_ONE = ("heads", "block")


@dataclass(frozen=True)
class ScaledDownSpec:
    """Experiment to prove, and what of it was made smaller."""

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
        return f"{self.parameters:,} parameters are many: proved on a scaled-down spec of {own:,} ({changed})."


def scale_down(experiment: Experiment) -> ScaledDownSpec:
    """Return the experiment itself where it is small; else with widths, depths and batch halved until it is small.

    Only changes that the spec accepts and that leave the fields of a batch alone are made, so that the same data fit.
    """
    parameters = count_parameters(experiment.model, experiment.objective).total
    if is_small(experiment):
        return ScaledDownSpec(experiment, {}, parameters)
    found, changes = experiment, dict[str, Any]()
    for fits in (has_few_parameters, is_small):  # a count of operations takes a second or two
        if not fits(found):
            for names, least in ((_WIDTHS, LEAST_WIDTH), (_DEPTHS, LEAST_DEPTH)):
                changes |= _halved(experiment, changes, names, least, fits)
            found = _changed(experiment, changes) or experiment
        if not is_small(found):
            changes |= _small_batch(experiment, changes)
            found = _changed(experiment, changes) or found
    return ScaledDownSpec(found, changes, parameters)


def has_few_parameters(experiment: Experiment) -> bool:
    """Return True if an experiment has few enough parameters to be proved as it is."""
    return count_parameters(experiment.model, experiment.objective).total <= MOST_PARAMETERS


def is_small(experiment: Experiment) -> bool:
    """Return True if an experiment is proved as it is, by its parameters and the operations of its step."""
    return has_few_parameters(experiment) and step_flops(experiment).model <= MOST_FLOPS


def _halved(
    experiment: Experiment, changes: Mapping[str, Any], names: tuple[str, ...], least: int,
    fits: Callable[[Experiment], bool],
) -> dict[str, Any]:  # fmt: skip
    """Return the model's fields of such names, halved as often as the spec accepts, until the experiment `fits`.

    All together first, as the width of a network depends on its heads, a block's number on the depth; then each alone.
    """
    fields = dict(_numbers(experiment, names))
    current = {path: changes.get(path, value) for path, value in fields.items()}
    found: dict[str, Any] = {}
    for group in (list(fields), *([path] for path in fields)):
        while True:
            tried = {path: _half(path, current[path], least) for path in group}
            smaller = _changed(experiment, {**changes, **found, **tried})
            if smaller is None or all(value == current[path] for path, value in tried.items()):
                break
            current |= tried
            found |= {path: value for path, value in tried.items() if value != fields[path]}
            if fits(smaller):
                return found
    return found


def _numbers(experiment: Experiment, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield whole numbers of the model and the objective with such names, `width` and all that end in `_width`."""
    spec = experiment.to_dict()
    for section in ("model", "objective"):
        for name, value in spec[section].items():
            if isinstance(value, int) and not isinstance(value, bool) and name.rpartition("_")[2] in names:
                yield f"{section}.{name}", value


def _half(path: str, value: int, least: int) -> int:
    """Halve a number that does not go below `least` by it; heads and numbers of blocks go down to one."""
    half = max(1, value // 2)
    return half if half >= least or path.endswith(_DOWN_TO_ONE) else value


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


def _small_batch(experiment: Experiment, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of few samples with as many workers, that still accumulates where the experiment does."""
    passes, found = min(MOST_PASSES, experiment.accumulation), dict[str, Any]()
    for size in SAMPLES:
        size = min(size, experiment.micro_size)
        found = {"batch.size": passes * size * experiment.resources.max_workers}
        found |= {"batch.micro": size} if experiment.batch.micro else {}
        smaller = _changed(experiment, {**changes, **found})
        if smaller is not None and is_small(smaller):
            break
    return found
