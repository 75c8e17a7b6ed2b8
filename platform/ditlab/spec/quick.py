"""A run of about a minute out of any experiment: few steps, small batches, a narrow evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.format_value import format_value
from ditlab.spec.loading import build_experiment, load_experiment
from ditlab.spec.reading.overrides import Assignment, apply_overrides, assign, nested, parse_overrides, value_at

STEPS = 20
BATCH = 16
NAME_ENDING = "-quick"

SpecT = TypeVar("SpecT")


@dataclass(frozen=True)
class Quick(Generic[SpecT]):
    """A spec made short."""

    spec: SpecT
    changes: dict[str, tuple[Any, Any]]
    """Value before and after, by dotted path."""

    def lines(self) -> list[str]:
        """Lines for people: each change."""
        changed = [
            f"  {path}={format_value(after)} (was {format_value(before)})"
            for path, (before, after) in self.changes.items()
        ]
        return [f"--quick makes {len(changed)} changes:", *changed] if changed else ["--quick changes nothing."]

    def to_dict(self) -> dict[str, Any]:
        """The changes, as `--json` has them."""
        return {"quick": {path: {"was": was, "is": new} for path, (was, new) in self.changes.items()}}


def load_quick_experiment(path: Path, overrides: Sequence[str] = ()) -> Quick[Experiment]:
    """Load an experiment and make it short. What an override sets, or a part of, stays. Raises UserError."""
    given = {assignment.path: assignment.value for assignment in parse_overrides(overrides)}
    try:
        return shorten_experiment(load_experiment(path, overrides), given)
    except UserError:  # `training.steps=10` alone may not fit the file's warm-up
        own = load_experiment(path)
        changes = shorten_experiment(own, given).changes
        shorter = assign(own.to_dict(), [_assignment(path, after) for path, (_, after) in changes.items()], class_for)
        return Quick(build_experiment(apply_overrides(shorter, overrides, class_for), str(path)), changes)


def shorten_experiment(
    experiment: Experiment, given: Mapping[str, Any] | None = None, *, every: int | None = None, quality: int = 0
) -> Quick[Experiment]:
    """Make an experiment short, without the paths `given`, which have been set already.

    `every` is the number of steps between evaluations (None: one evaluation, at the end), `quality` the number of
    samples that quality figures keep. Raises UserError where a length that was given does not fit the others.
    """
    given, before, short = dict(given or {}), experiment.to_dict(), experiment
    for is_needed, changes in _changes(before, given, every, quality):
        # the number of steps that was given goes along: without it, a length in epochs could not be taken away
        free = (path for path in changes if path == "training.steps" or not is_given(path, given))
        changes = {path: changes[path] for path in free}
        try:
            short = short.replace_all(changes)
        except UserError:
            if is_needed:
                raise
    after = short.to_dict()
    paths = [path for _, changes in _changes(before, given, every, quality) for path in changes]
    values = {path: (value_at(before, path.split(".")), value_at(after, path.split("."))) for path in paths}
    changed = {path: pair for path, pair in values.items() if pair[0] != pair[1] and not is_given(path, given)}
    return Quick(short, changed)


def is_given(path: str, given: Mapping[str, Any]) -> bool:
    """Return True if a path, one above it or one below it has been set."""
    return any(f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in given)


def _changes(
    before: dict[str, Any], given: Mapping[str, Any], every: int | None, quality: int
) -> Iterator[tuple[bool, dict[str, Any]]]:
    """(whether it is needed, values by path) of the changes that are made together."""
    steps = _steps(before, given)
    yield False, {"name": before["name"].removesuffix(NAME_ENDING)[:90] + NAME_ENDING}
    if steps is not None:
        yield True, {"training.steps": steps, "training.epochs": None, **_warmup(before["schedule"], steps)}
    if not is_given("batch", given):
        yield False, _batch(before)
    evaluation = before["evaluation"]
    if evaluation["every"] is not None or every:
        yield False, {"evaluation.every": every or max(steps or STEPS, evaluation["every"])}
    yield (
        False,
        {
            "evaluation.samples": min(evaluation["samples"], 4),
            "evaluation.limit": min(evaluation["limit"], 32),
            "evaluation.quality": min(evaluation["quality"], quality),
        },
    )
    if before["checkpoint"]["every"] is not None:
        yield False, {"checkpoint.every": max(steps or STEPS, before["checkpoint"]["every"])}
    if "steps" in before["sampling"]:
        yield False, {"sampling.steps": min(before["sampling"]["steps"] or 10, 10)}
    yield False, {"engine.compile": False}


def _steps(before: dict[str, Any], given: Mapping[str, Any]) -> int | None:
    """Steps of the short run; None where its length in epochs was given."""
    set_by_hand: dict[str, Any] = {}
    for path, value in given.items():
        if path.split(".")[0] == "training":
            set_by_hand[path] = nested(path.split("."), value)
    steps = next((found for each in set_by_hand.values() if (found := value_at(each, ["training", "steps"]))), None)
    epochs = next((found for each in set_by_hand.values() if (found := value_at(each, ["training", "epochs"]))), None)
    if steps is not None:
        return steps if isinstance(steps, int) else None
    if epochs is not None:
        return None
    start = before.get("start")
    first = start["step"] if start and start["state"] == "all" else 0
    return min(before["training"]["steps"] or first + STEPS, first + STEPS)


def _warmup(schedule: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """A warm-up of a tenth of the steps, where there is one."""
    if schedule.get("warmup_epochs"):
        return {"schedule.warmup_epochs": 0.0, "schedule.warmup": steps // 10}
    warmup = schedule.get("warmup")
    return {"schedule.warmup": min(warmup, steps // 10)} if warmup else {}


def _batch(before: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of which each worker has as many samples as others, in whole micro-batches."""
    workers, batch = before["resources"]["workers"], before["batch"]
    most = workers["max"] if isinstance(workers, dict) else workers
    each = max(1, BATCH // most)
    if batch["size"] <= each * most:
        return {}
    if batch["micro"] is None:
        return {"batch.size": each * most}
    micro = min(batch["micro"], each)
    return {"batch.size": each // micro * micro * most, "batch.micro": micro}


def _assignment(path: str, value: Any) -> Assignment:
    return Assignment(path, value, f"--quick {path}={format_value(value)}")
