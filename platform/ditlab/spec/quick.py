"""A run of about a minute out of any experiment, and a sweep of a few short trials out of any
sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment, load_experiment, resolve_paths, spec_name
from ditlab.spec.overrides import assign, changed_values, is_below, parse_overrides
from ditlab.spec.start import first_step
from ditlab.spec.sweep import Sweep, build_sweep, load_sweep
from ditlab.spec.sweep_space import SMALLEST_POPULATION, check_sweep, experiment_for
from ditlab.spec.values import format_value

STEPS = 20
BATCH = 16
NAME_ENDING = "-quick"
RHYTHM = 10
"""Steps between evaluations where a scheduler compares trials as they train."""
TRIALS = SEEDS = 2

SpecT = TypeVar("SpecT", Experiment, Sweep)


@dataclass(frozen=True)
class Quick(Generic[SpecT]):
    """A spec made short."""

    spec: SpecT
    changes: dict[str, tuple[Any, Any]]
    """Value before and after, by dotted path."""

    def lines(self) -> list[str]:
        """Lines for people: each change."""
        pairs = self.changes.items()
        changed: list[str] = [
            f"  {path}={format_value(new)} (was {format_value(was)})" for path, (was, new) in pairs
        ]
        if changed:
            return [f"--quick makes {len(changed)} changes:", *changed]
        return ["--quick changes nothing."]

    def to_dict(self) -> dict[str, Any]:
        """The changes, as `--json` has them."""
        return {
            "quick": {path: {"was": was, "is": new} for path, (was, new) in self.changes.items()}
        }


def _compared(before: SpecT, short: SpecT) -> Quick[SpecT]:
    changed = changed_values(before.to_dict(), short.to_dict())
    return Quick(short, {path: (was, new) for path, was, new in changed})


def load_quick_experiment(path: Path, overrides: Sequence[str] = ()) -> Quick[Experiment]:
    """Load an experiment and make it short; overrides apply to the short one. Raises UserError."""
    try:
        own = load_experiment(path, overrides)
    except UserError:  # `training.steps=10` alone may not fit the file's warm-up
        own = load_experiment(path)
    short = shorten_experiment(own).spec.to_dict()
    mapping = resolve_paths(assign(short, parse_overrides(overrides), class_for), Path())
    return _compared(own, build_experiment(mapping, spec_name(path)))


def shorten_experiment(experiment: Experiment) -> Quick[Experiment]:
    """Make an experiment short."""
    values = _short_values(experiment)
    try:
        short = experiment.replace_all({**values, **_short_batch(experiment)})
    except UserError:  # a smaller batch does not fit the streams of the data
        short = experiment.replace_all(values)
    return _compared(experiment, short)


def _short_values(experiment: Experiment) -> dict[str, Any]:
    """Values by path of a short run, without its batch."""
    steps = first_step(experiment.start) + STEPS
    if experiment.training.steps:
        steps = min(steps, experiment.training.steps)
    values: dict[str, Any] = {
        "name": _short_name(experiment.name),
        "training.steps": steps,
        "training.epochs": None,
        "evaluation.samples": min(experiment.evaluation.samples, 4),
        "evaluation.limit": min(experiment.evaluation.limit, 32),
        "evaluation.quality": 0,
        "engine.compile": False,
    }
    spec = experiment.to_dict()
    schedule = spec["schedule"]
    if schedule.get("warmup_epochs"):
        values["schedule.warmup_epochs"] = 0.0
        values["schedule.warmup"] = steps // 10
    elif schedule.get("warmup"):
        values["schedule.warmup"] = min(schedule["warmup"], steps // 10)
    if schedule.get("decay_start"):
        values["schedule.decay_start"] = min(schedule["decay_start"], steps - max(1, steps // 5))
    for section in ("evaluation", "checkpoint"):
        if spec[section]["every"] is not None:
            values[f"{section}.every"] = max(steps, spec[section]["every"])
    if "steps" in spec["sampling"]:
        values["sampling.steps"] = min(spec["sampling"]["steps"] or 10, 10)
    return values


def _short_batch(experiment: Experiment) -> dict[str, Any]:
    """Values by path of a small batch: as many samples for each worker, in whole micro-batches."""
    batch = experiment.batch
    workers = experiment.resources.max_workers
    each = max(1, BATCH // workers)
    if batch.size <= each * workers:
        return {}
    return {
        "batch.size": each * workers,
        "batch.micro": batch.micro and math.gcd(batch.micro, each),
    }


def _short_name(name: str) -> str:
    return name.removesuffix(NAME_ENDING)[:90] + NAME_ENDING


def _is_set(path: str, others: Iterable[str]) -> bool:
    """Return True if a path, one above it or one below it is among others."""
    return any(is_below(path, other) or is_below(other, path) for other in others)


def load_quick_sweep(path: Path, overrides: Sequence[str] = ()) -> Quick[Sweep]:
    """Load a sweep and make it short. What an override sets stays. Raises UserError."""
    given = [override.path for override in parse_overrides(overrides)]
    return shorten_sweep(load_sweep(path, overrides), given, spec_name(path))


def shorten_sweep(sweep: Sweep, given: Sequence[str] = (), source: str = "") -> Quick[Sweep]:
    """Make a sweep short: few trials, drawn at random where it was a grid, each of them short.

    `given` are paths that stay; `source` begins messages. Raises UserError for a sweep that is
    wrong.
    """
    source = source or sweep.name
    mapping = sweep.to_dict()
    mapping["name"] = _short_name(sweep.name)
    for path, value in _short_trials(sweep, source).items():
        if not _is_set(path, sweep.space) and not _is_set(f"fixed.{path}", given):
            mapping["fixed"][path] = value
    kind = sweep.scheduler.kind
    if kind != "none":  # its milestones lie within the short trials
        field = "interval" if kind == "pbt" else "grace"
        if f"scheduler.{field}" not in given:
            mapping["scheduler"][field] = RHYTHM
    if "trials" not in given:
        most = SMALLEST_POPULATION if kind == "pbt" else TRIALS
        mapping["trials"] = min(sweep.trials or TRIALS, most)
        _draw_at_random(mapping)
    if sweep.num_seeds > SEEDS and "seeds" not in given:
        mapping["seeds"] = SEEDS
    short = build_sweep(mapping, sweep.name)
    check_sweep(short, source)
    return _compared(sweep, short)


def _short_trials(sweep: Sweep, source: str) -> dict[str, Any]:
    """Values by path that make the trials of a sweep short. Raises UserError for a wrong base."""
    try:
        trial = experiment_for(sweep, {})
    except UserError:  # what was given alone may not fit, such as a length
        trial = build_experiment(sweep.base, source)
    changes = shorten_experiment(trial).changes
    values = {path: new for path, (_, new) in changes.items() if path != "name"}
    if any(metric.startswith("quality/") for metric in sweep.metrics):
        values["evaluation.quality"] = 100
    if sweep.scheduler.kind != "none":
        values["evaluation.every"] = RHYTHM
    return values


def _draw_at_random(mapping: dict[str, Any]) -> None:
    """Let a sweep draw the few trials that it has from its axes, in the place of crossing these."""
    if mapping["search"]["kind"] == "grid":
        mapping["search"] = {"kind": "random"}
    for axis in mapping["space"].values():
        if axis["kind"] == "grid":
            axis["kind"] = "choice"
