"""Forecast of a sweep's duration and device hours, from the speed of earlier runs or from a few
timed steps.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ditlab.data.loading.batches import held_out_batches
from ditlab.data.splits import open_data
from ditlab.errors import BudgetUsedUp, UserError
from ditlab.home import Home, RunFolder
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import RowNoise, fixed_noise
from ditlab.reports.formatting import format_duration
from ditlab.reports.sweep_records import Trial
from ditlab.runs.budget import device_kind, num_devices
from ditlab.runs.cores import busy_text
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.start import first_step
from ditlab.spec.sweep import Asha, Median, Scheduler, Sweep
from ditlab.spec.sweep_space import num_repeats
from ditlab.sweeps.prepare import CheckedTrial, PreparedSweep
from ditlab.tracking.history import metric_history
from ditlab.tracking.index import DeviceHours
from ditlab.tracking.records import list_runs
from ditlab_models.finetuning import fine_tune

TIMED_PASSES = 3  # after a first one that is not counted
MAX_SEARCHED_RUNS = 50  # newest runs that are searched for one with the same speed
SAME_SPEED = ("model", "batch", "resources", "engine")
"""Sections of a spec that decide a run's speed, besides its precision."""


@dataclass(frozen=True)
class Speed:
    """Speed of a training, in samples a second."""

    rate: float | None
    """As it was measured; None where nothing was."""
    source: str
    """Origin of the figure, for a sentence."""
    idle_rate: float | None = None
    """On this machine without its other work, by the processor time that was used; None where
    nothing was timed.
    """

    def shared(self, num: int) -> "Speed":
        """Return the speed of each of `num` trainings at once."""
        return replace(
            self,
            rate=self.rate and self.rate / num,
            idle_rate=self.idle_rate and self.idle_rate / num,
        )


@dataclass(frozen=True)
class Forecast:
    """Expected duration of a sweep."""

    seconds: dict[int, float | None]
    """Training time by trial number; None where the speed is unknown."""
    total: float | None
    """Duration of what is left of the sweep, at the speed that was measured."""
    idle_total: float | None
    """Duration on this machine without the work of other processes; None where these did not keep
    it busy.
    """
    device_hours: float | None
    """Hours of devices of what is left of the sweep; None where the speed is unknown."""
    device: str
    """Device that these hours are of: `GPU`, `core`."""
    lines: list[str]
    """The forecast in sentences."""

    def to_dict(self, prepared: PreparedSweep) -> dict[str, Any]:
        """The forecast as `--json` prints it."""
        trials = [
            {
                "number": trial.number,
                "values": trial.values,
                "parameters": trial.num_parameters,
                "steps": trial.total_steps,
                "seconds": self.seconds.get(trial.number),
                "configuration": trial.configuration,
                "seed": trial.experiment.seed,
            }
            for trial in prepared.trials
        ]
        return {
            "trials": trials,
            "num_trials": prepared.num_trials,
            "repeats": num_repeats(prepared.sweep),
            "concurrent": prepared.concurrency.num_trials,
            "seconds": self.total,
            "device_hours": self.device_hours,
            "device": self.device,
            "idle_seconds": self.idle_total,
        }


@dataclass(frozen=True)
class _TrialCosts:
    """Expected cost of trials by their number."""

    seconds: dict[int, float | None] = field(default_factory=dict)
    """None where the speed is unknown; such a trial is in no other field."""
    idle_seconds: dict[int, float] = field(default_factory=dict)
    """Seconds on this machine without its other work."""
    device_hours: dict[int, float] = field(default_factory=dict)
    speeds: dict[str, Speed] = field(default_factory=dict)
    """Speed by `_speed_key`."""

    def busy_text(self) -> str:
        """Say what kept this machine busy; empty where no step was timed, or nothing did."""
        if any(speed.idle_rate for speed in self.speeds.values()):
            return busy_text()
        return ""


def forecast(prepared: PreparedSweep, past: Sequence[Trial] = ()) -> Forecast:
    """Estimate each trial's duration; `past` are the trials of a sweep that is resumed.

    Without an earlier run of the same speed, a few passes of each kind of network are timed on this
    machine. The speed of a GPU is only known from earlier runs. Raises BudgetUsedUp where the
    sweep's budget is used up, or is less than the shortest trial takes.
    """
    costs = _trial_costs(prepared)
    ended = {trial.number for trial in past if trial.has_ended}
    remaining = [number for number in costs.seconds if number not in ended]
    at_once = prepared.concurrency.num_trials
    seconds = [costs.seconds[number] for number in remaining]
    total = None if None in seconds else sum(filter(None, seconds)) / at_once
    hours = None
    if None not in costs.seconds.values():
        hours = sum(costs.device_hours[number] for number in remaining)
    busy = costs.busy_text()
    idle_total = None
    if total and busy:
        idle_total = sum(costs.idle_seconds[number] for number in remaining) / at_once
    device = device_kind(prepared.base)
    found = Forecast(costs.seconds, total, idle_total, hours, device, [])
    found.lines.append(f"expected: {_expected_text(found, costs, at_once)}")
    if idle_total is not None:
        found.lines.append(
            f"this machine was busy: {busy} while the steps were timed; the first figures are "
            "for an idle one, by processor time"
        )
    if total:
        found.lines.extend(_scheduler_lines(prepared.sweep))
    if prepared.sweep.budget:
        found.lines.append(_budget_line(prepared, past, costs.device_hours, hours))
    return found


def _expected_text(found: Forecast, costs: _TrialCosts, at_once: int) -> str:
    """Duration and device hours in words, those of an idle machine first where it was busy."""
    sources = ", ".join(sorted({speed.source for speed in costs.speeds.values()}))
    if found.total is None or found.device_hours is None:
        return f"unknown ({sources})"
    durations = format_duration(found.total)
    spent = f"{found.device_hours:.3g}"
    if found.idle_total is not None:
        durations = f"{format_duration(found.idle_total)} to {durations}"
        spent = f"{found.device_hours * found.idle_total / found.total:.3g} to {spent}"
    return f"{durations} with {at_once} at once, {spent} {found.device} hours, by {sources}"


def _scheduler_lines(sweep: Sweep) -> Iterator[str]:
    """Say what a scheduler that stops trials changes in the forecast."""
    scheduler = sweep.scheduler
    if isinstance(scheduler, Scheduler):
        yield f"scheduler {scheduler.kind} {scheduler.forecast_note}"
    elif isinstance(scheduler, Asha | Median):
        yield f"scheduler {scheduler.kind} {Scheduler.forecast_note}"


def _trial_costs(prepared: PreparedSweep) -> _TrialCosts:
    """Estimate each trial's cost; trials whose values are not known yet count as the base."""
    trials = prepared.trials or [
        CheckedTrial(number, {}, prepared.base, 0, prepared.total_steps, number, None)
        for number in range(prepared.num_trials)
    ]
    costs = _TrialCosts()
    for trial in trials:
        experiment = trial.experiment
        key = _speed_key(experiment)
        if key not in costs.speeds:
            costs.speeds[key] = _speed(experiment, prepared.home, prepared.concurrency.num_trials)
        speed = costs.speeds[key]
        if not speed.rate:
            costs.seconds[trial.number] = None
            continue
        samples = (trial.total_steps - first_step(experiment.start)) * experiment.batch.size
        duration = samples / speed.rate
        workers = experiment.resources.max_workers
        devices = num_devices(experiment, workers, prepared.concurrency.share.threads)
        costs.seconds[trial.number] = duration
        costs.idle_seconds[trial.number] = samples / (speed.idle_rate or speed.rate)
        costs.device_hours[trial.number] = duration * devices / 3600
    return costs


def _budget_line(
    prepared: PreparedSweep, past: Sequence[Trial], hours: Mapping[int, float], left: float | None
) -> str:
    """Say whether the sweep's budget holds; `hours` are those of all trials by number, `left` the
    sum of those to come.

    `left` is None where they are unknown. Raises BudgetUsedUp for one that is used up, or too small
    for a trial.
    """
    sweep = prepared.sweep
    device = device_kind(prepared.base)
    used = DeviceHours(prepared.home).total([trial.run_id for trial in past])[device]
    assert sweep.budget
    limit = sweep.budget.device_hours
    scheduler = sweep.scheduler
    name = f"budget.device_hours={limit:g}"
    if used >= limit:
        raise BudgetUsedUp(
            f"{name} is used up: the trials have taken {used:.3g} {device} hours; resume the "
            "sweep with its file and --set budget.device_hours=HOURS, with more hours."
        )
    if left is None:
        return f"{name}: nobody knows whether it holds, as there is no earlier run of this speed"
    shortest = min(hours.values())
    if isinstance(scheduler, Asha | Median | Scheduler):
        shortest *= min(1.0, scheduler.grace / prepared.total_steps)
    if limit < shortest:
        raise BudgetUsedUp(
            f"{name} is less than the shortest trial takes, about {shortest:.3g} {device} "
            "hours; raise it, or lower training.steps under `fixed`."
        )
    about = f"{used:.3g} {device} hours are used, and about {left:.3g} more are expected"
    if used + left <= limit:
        return f"{name} holds: {about}"
    return f"{name} does not hold: {about}; `ditlab tune --resume` with a larger budget goes on"


def _speed_key(experiment: Experiment) -> str:
    """Key that is equal for experiments that train at the same speed."""
    spec = experiment.to_dict()
    parts = [{**spec[part], "max_failures": 0} for part in SAME_SPEED]
    return repr([*parts, spec["training"]["precision"]])


def _speed(experiment: Experiment, home: Home, concurrent: int) -> Speed:
    """Return the speed of an earlier run, or else of timed steps."""
    resources = experiment.resources
    records = [record for record in list_runs(home) if record.step > 0 and not record.trials]
    for record in records[:MAX_SEARCHED_RUNS]:
        folder = home.run(record.run_id)
        if record.family != experiment.model.family or not folder.spec.exists():
            continue
        rates = metric_history(folder).get("train/samples_per_second")
        if rates and _trains_alike(folder, experiment):
            speed = Speed(statistics.median(rates.values), "the speed of earlier runs of this kind")
            # a run alone had all of a machine's cores
            has_own = record.parent or resources.gpus_per_worker or resources.cpus_per_worker
            return speed if has_own else speed.shared(concurrent)
    if resources.gpus_per_worker:
        return Speed(None, "no earlier run on a GPU to take the speed from")
    return _time_steps(experiment, home).shared(concurrent)


def _trains_alike(folder: RunFolder, experiment: Experiment) -> bool:
    """Return True if a run's experiment trains at the same speed; False for a spec of another
    version.
    """
    with suppress(UserError):
        return _speed_key(load_recorded_experiment(folder.spec)) == _speed_key(experiment)
    return False


def _time_steps(experiment: Experiment, home: Home) -> Speed:
    """Measure the speed of forward and backward passes on all of this machine's cores."""
    data = open_data(experiment.data, home)
    view = data.train.fullest()
    inputs = ModelInputs.from_experiment(experiment, view.columns, torch.device("cpu"), home=home)
    size = min(experiment.micro_size, len(view))
    objective: Any = experiment.family.build_objective(
        experiment.objective, experiment.model, data.text
    )
    network: Any = experiment.family.build_network(experiment.model)
    fine_tune(network, objective.modules, experiment.training, lambda _: 0)
    raw = next(held_out_batches(view, inputs.fields, size, size))
    batch = inputs.prepare_batch(raw, view.columns, noise=fixed_noise(0, inputs.device))
    times: list[float] = []
    processor_times: list[float] = []
    for number in range(TIMED_PASSES + 1):
        start = time.perf_counter()
        processor_start = time.process_time()
        losses = objective.loss(
            network, batch, RowNoise(number, "forecast", 0, torch.device("cpu"))
        )
        sum(losses.values()).backward()
        times.append(time.perf_counter() - start)
        processor_times.append((time.process_time() - processor_start) / torch.get_num_threads())
    measured = statistics.median(times[1:])
    idle = min(measured, statistics.median(processor_times[1:]))
    return Speed(size / measured, "timed steps on this machine", size / idle)
