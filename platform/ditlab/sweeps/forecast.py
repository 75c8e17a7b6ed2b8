"""Forecast of a sweep's duration and device hours, from the speed of earlier runs or from a few
timed steps.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from ditlab.data.loading.batches import held_out_batches
from ditlab.data.splits import open_data
from ditlab.errors import BudgetUsedUp, UserError
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import RowNoise, fixed_noise
from ditlab.reports.formatting import format_duration
from ditlab.reports.sweep_records import Trial
from ditlab.runs.budget import device_kind, num_devices
from ditlab.runs.cores import busy_text
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.start import first_step
from ditlab.spec.sweep import Asha, Median, Scheduler
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
        at_once = prepared.concurrency.num_trials
        return {
            "trials": trials,
            "num_trials": prepared.num_trials,
            "concurrent": at_once,
            "seconds": self.total,
            "device_hours": self.device_hours,
            "device": self.device,
            "idle_seconds": self.idle_total,
        }


def forecast(prepared: PreparedSweep, past: Sequence[Trial] = ()) -> Forecast:
    """Estimate each trial's duration; `past` are the trials of a sweep that is resumed.

    Without an earlier run of the same speed, a few passes of each kind of network are timed on this
    machine. The speed of a GPU is only known from earlier runs. Raises BudgetUsedUp where the
    sweep's budget is used up, or is less than the shortest trial takes.
    """
    speeds: dict[str, Speed] = {}
    seconds: dict[int, float | None] = {}
    idle_seconds: dict[int, float] = {}
    hours: dict[int, float] = {}
    ended = {trial.number for trial in past if trial.has_ended}
    at_once = prepared.concurrency.num_trials
    # Trials whose values are not known yet count as the base.
    unknown = [
        CheckedTrial(number, {}, prepared.base, 0, prepared.total_steps, number, None)
        for number in range(prepared.num_trials)
    ]
    for trial in prepared.trials or unknown:
        experiment = trial.experiment
        key = _speed_key(experiment)
        if key not in speeds:
            speeds[key] = _speed(experiment, prepared.home, at_once)
        speed = speeds[key]
        samples = (trial.total_steps - first_step(experiment.start)) * experiment.batch.size
        seconds[trial.number] = duration = samples / speed.rate if speed.rate else None
        if duration is not None:
            idle_seconds[trial.number] = samples / speed.idle_rate if speed.idle_rate else duration
            workers = experiment.resources.max_workers
            threads = prepared.concurrency.share.threads
            hours[trial.number] = duration * num_devices(experiment, workers, threads) / 3600
    to_come = [number for number in seconds if number not in ended]
    left = [seconds[number] for number in to_come]
    total = None if None in left else sum(filter(None, left)) / at_once
    sources = ", ".join(sorted({speed.source for speed in speeds.values()}))
    device = device_kind(prepared.base)
    is_known = None not in seconds.values()
    hours_left = sum(hours[number] for number in to_come) if is_known else None
    text = f"unknown ({sources})"
    busy = busy_text() if any(speed.idle_rate for speed in speeds.values()) else ""
    idle_total = None
    if total and busy:
        idle_total = sum(idle_seconds[number] for number in to_come) / at_once
    if total is not None and hours_left is not None:
        durations = format_duration(total)
        spent = f"{hours_left:.3g}"
        if total and idle_total is not None:
            durations = f"{format_duration(idle_total)} to {durations}"
            spent = f"{hours_left * idle_total / total:.3g} to {spent}"
        text = f"{durations} with {at_once} at once, {spent} {device} hours, by {sources}"
    lines = [f"expected: {text}"]
    if idle_total is not None:
        lines.append(
            f"this machine was busy: {busy} while the steps were timed; the first figures are "
            "for an idle one, by processor time"
        )
    scheduler = prepared.sweep.scheduler
    if isinstance(scheduler, Asha | Median | Scheduler) and total:
        if isinstance(scheduler, Scheduler):
            note = scheduler.forecast_note
        else:
            note = Scheduler.forecast_note
        lines.append(f"scheduler {scheduler.kind} {note}")
    if prepared.sweep.budget:
        used = DeviceHours(prepared.home).total([trial.run_id for trial in past])[device]
        lines.append(_budget_line(prepared, used, hours, hours_left))
    return Forecast(seconds, total, idle_total, hours_left, device, lines)


def _budget_line(
    prepared: PreparedSweep, used: float, hours: Mapping[int, float], left: float | None
) -> str:
    """Say whether the sweep's budget holds; `hours` are those of all trials by number, `left` the
    sum of those to come.

    `left` is None where they are unknown. Raises BudgetUsedUp for one that is used up, or too small
    for a trial.
    """
    sweep = prepared.sweep
    device = device_kind(prepared.base)
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
    return repr(
        [{**spec[part], "max_failures": 0} for part in SAME_SPEED] + [spec["training"]["precision"]]
    )


def _speed(experiment: Experiment, home: Home, concurrent: int) -> Speed:
    """Return the speed of an earlier run, or else of timed steps."""
    candidates = [record for record in list_runs(home) if record.step > 0 and not record.trials]
    for record in candidates[:MAX_SEARCHED_RUNS]:
        folder = home.run(record.run_id)
        if record.family == experiment.model.family and folder.spec.exists():
            found = metric_history(folder).get("train/samples_per_second")
            with suppress(UserError):  # a spec of another version
                if found and _speed_key(load_recorded_experiment(folder.spec)) == _speed_key(
                    experiment
                ):
                    resources = experiment.resources
                    has_own = (
                        record.parent or resources.gpus_per_worker or resources.cpus_per_worker
                    )
                    # a run alone had all of a machine's cores
                    shared = 1 if has_own else concurrent
                    return Speed(
                        statistics.median(found.values), "the speed of earlier runs of this kind"
                    ).shared(shared)
    if experiment.resources.gpus_per_worker:
        return Speed(None, "no earlier run on a GPU to take the speed from")
    return _time_steps(experiment, home).shared(concurrent)


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
