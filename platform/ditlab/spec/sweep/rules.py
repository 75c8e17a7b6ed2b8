"""Checks of a sweep as a whole: number of trials, ranking, scheduler."""

import math

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment
from ditlab.spec.format_value import format_value
from ditlab.spec.reading.field_paths import SELECTORS
from ditlab.spec.sweep.axes import Axis, Grid, ListAxis
from ditlab.spec.sweep.conditions import num_combinations
from ditlab.spec.sweep.spec import MAX_TRIALS, Asha, Median, Pbt, Sweep

WHOLE_GRID = 1_000  # combinations that `trials: null` stands for; more want to be written out
# Fields that a population can change in the middle of a run.
PBT_AREAS = ("optimizer.", "schedule.", "objective.", "training.clip.", "training.ema.", "sampling.")
SMALLEST_POPULATION = 4


def crossed_axes(sweep: Sweep) -> dict[str, Axis]:
    """The axes whose values are all tried: every one of a grid search, those of kind `grid` of a random one."""
    return {path: axis for path, axis in sweep.space.items() if sweep.search.kind == "grid" or isinstance(axis, Grid)}


def check_number(sweep: Sweep, source: str) -> None:
    """Raise UserError where `trials` does not fit the search and its combinations. Makes none of them."""
    if sweep.search.kind != "grid" and sweep.trials is None:
        raise UserError(f"{source}: trials=null leaves search.kind={sweep.search.kind} without an end; give a number.")
    if sweep.search.kind == "optuna":
        return
    crossed = crossed_axes(sweep)
    for path, axis in crossed.items():
        if axis.listed() is None:
            raise UserError(
                f"{source}: space.{path}.kind={axis.kind} has no end of values for search.kind=grid; "
                "use kind: grid with values written out, or set search.kind to random."
            )
        if other := next((name for name in axis.when if name not in crossed), None):
            raise UserError(
                f"{source}: space.{path}, of kind grid, depends on {other}, which is drawn anew in every trial; "
                f"make space.{other} an axis of kind grid too, or space.{path} one of kind choice."
            )
    count = num_combinations(crossed)
    sizes = ", ".join(f"{path} {len(axis.listed() or ()):,}" for path, axis in crossed.items())
    if count > (sweep.trials or WHOLE_GRID):
        limit = (
            f"trials={sweep.trials} are fewer"
            if sweep.trials
            else f"trials=null stands for at most {WHOLE_GRID:,} of them"
        )
        enough = f"a multiple of {count}" if sweep.search.kind == "random" else f"{count}"
        remedy = f"set trials to {enough}, or take values out" if count <= MAX_TRIALS else "take values out"
        raise UserError(f"{source}: space has {count:,} combinations ({sizes}), and {limit}; {remedy}.")
    if sweep.search.kind == "random" and sweep.trials is not None and sweep.trials % count:
        below = sweep.trials // count * count
        raise UserError(
            f"{source}: trials={sweep.trials} is no multiple of the {count} combinations of the grid axes ({sizes}), "
            f"each of which is tried on the same draws; set trials to {below} or {below + count}."
        )


def check_ranking(sweep: Sweep, source: str) -> None:
    """Raise UserError for a ranking that the search cannot make, or that says nothing."""
    several = len(sweep.metrics) > 1
    if several and sweep.scheduler.kind != "none":
        raise UserError(
            f"{source}: metric={format_value(sweep.metric)} names several, and scheduler.kind={sweep.scheduler.kind} "
            "ranks by one; name one metric, or set scheduler.kind to none."
        )
    if several and sweep.search.kind != "optuna":
        raise UserError(
            f"{source}: metric={format_value(sweep.metric)} names several, which only search.kind=optuna weighs "
            f"against each other (it is {sweep.search.kind}); name one metric, or set search.kind to optuna."
        )
    pace = next((name for name in sweep.metrics if name.startswith(("time/", "perf/"))), None)
    if pace and sweep.scheduler.kind != "none":
        raise UserError(
            f"{source}: metric={pace} is measured over a whole trial and not at its evaluations, by which "
            f"scheduler.kind={sweep.scheduler.kind} would stop it; set scheduler.kind to none."
        )
    weighing = next((path for path in sweep.space if path.split(".")[0] == "objective"), None)
    training = next((name for name in sweep.metrics if name.startswith("train/")), None)
    if weighing and training:
        raise UserError(
            f"{source}: metric={training} is the loss that space.{weighing} changes, so small weights would win; "
            "rank by a held-out metric without weights, such as eval/velocity."
        )
    mixing = next((path for path in sweep.space if f"{path}.".startswith(("data.weights.", "data.parts."))), None)
    if mixing and training:
        raise UserError(
            f"{source}: metric={training} is measured on what space.{mixing} mixes, so weight on the easiest part "
            "would win; rank by a held-out metric, which measures all parts, such as eval/velocity."
        )


def check_scheduler(sweep: Sweep, reference: Experiment, source: str) -> None:
    """Raise UserError where a scheduler would never act, or act on trials that it cannot compare.

    `reference` is the base with `fixed`: its length and its evaluations are those of every trial.
    """
    scheduler = sweep.scheduler
    if isinstance(scheduler, Asha | Median):
        _check_rhythm(sweep, reference, "grace", scheduler.grace, source)
    elif isinstance(scheduler, Pbt):
        _check_rhythm(sweep, reference, "interval", scheduler.interval, source)
        _check_takeovers(scheduler, reference.evaluation.every or 1, source)
        _check_population(sweep, source)
        _check_movable(sweep, source)


def _check_rhythm(sweep: Sweep, reference: Experiment, knob: str, value: int, source: str) -> None:
    kind, steps, every = sweep.scheduler.kind, reference.training.steps, reference.evaluation.every
    for field in ("training.steps", "training.epochs", "evaluation.every"):
        if path := next((path for path in sweep.space if f"{field}.".startswith(f"{path}.")), None):
            raise UserError(
                f"{source}: space.{path} gives trials a rhythm of their own, and scheduler.kind={kind} compares them "
                f"at the same step; set fixed.{field}, or set scheduler.kind to none."
            )
    if steps is None:
        raise UserError(
            f"{source}: training.epochs={reference.training.epochs}, and scheduler.kind={kind} counts steps; "
            "set fixed.training.epochs to null and fixed.training.steps to a number."
        )
    if every is None or every > value:
        raise UserError(
            f"{source}: evaluation.every={format_value(every)} gives no figure to rank by within scheduler.{knob}="
            f"{value} steps; set fixed.evaluation.every to {value} or a part of it."
        )
    if value >= steps:
        raise UserError(
            f"{source}: scheduler.{knob}={value} leaves nothing of training.steps={steps} to stop or change; "
            f"set scheduler.{knob} below {steps}."
        )


def _check_takeovers(scheduler: Pbt, every: int, source: str) -> None:
    if scheduler.interval % every:
        below = scheduler.interval // every * every
        raise UserError(
            f"{source}: scheduler.interval={scheduler.interval} is no multiple of evaluation.every={every}, at which "
            f"trials are compared; set scheduler.interval to {below} or {below + every}, or fixed.evaluation.every to "
            f"{math.gcd(scheduler.interval, every)}."
        )


def _check_population(sweep: Sweep, source: str) -> None:
    if sweep.search.kind != "random":
        raise UserError(
            f"{source}: search.kind={sweep.search.kind} cannot start the population of scheduler.kind=pbt; "
            "set search.kind to random."
        )
    if sweep.trials is not None and sweep.trials < SMALLEST_POPULATION:
        raise UserError(
            f"{source}: trials={sweep.trials} are no population for scheduler.kind=pbt; "
            f"set trials to {SMALLEST_POPULATION} or more."
        )
    if sweep.concurrent not in (None, sweep.trials):
        raise UserError(
            f"{source}: concurrent={sweep.concurrent} of trials={sweep.trials} would train, and the population of "
            f"scheduler.kind=pbt trains at once; set concurrent to null or {sweep.trials}."
        )


def _check_movable(sweep: Sweep, source: str) -> None:
    for path, axis in sweep.space.items():
        where = f"{source}: space.{path}"
        if axis.when:
            raise UserError(
                f"{where}.when={format_value(axis.when)} would make it come and go as scheduler.kind=pbt varies "
                "trials; remove `when`, or set scheduler.kind to asha."
            )
        if isinstance(axis, Grid):
            raise UserError(f"{where}.kind=grid cannot be varied by scheduler.kind=pbt; use kind: choice.")
        switches = path.split(".")[-1] in SELECTORS or (
            isinstance(axis, ListAxis) and any(isinstance(value, dict) for value in axis.values)
        )
        if switches or not path.startswith(PBT_AREAS):
            areas = ", ".join(area.rstrip(".") for area in PBT_AREAS)
            raise UserError(
                f"{where} cannot change in the middle of a run, as scheduler.kind=pbt needs; vary single fields under "
                f"{areas}, and no kind, or set scheduler.kind to asha."
            )
