"""What a sweep will take: its trials, and for how long, by what earlier runs or a few timed steps say."""

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from ditlab.data.loading.field_checks import held_out_batches
from ditlab.data.splits import open_data
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import RowNoise
from ditlab.reports.formatting import describe_value, format_duration, short_names
from ditlab.spec.experiment import Experiment
from ditlab.spec.reading.loading import load_experiment
from ditlab.sweeps.prepare import CheckedTrial, ReadySweep
from ditlab.sweeps.trials import PlannedTrial
from ditlab.tracking.journal.history import metric_history
from ditlab.tracking.records import list_runs

TIMED_PASSES = 3  # after one that is not counted
NEWEST = 50  # runs that are looked through for one alike
SAME_SPEED = ("model", "batch", "resources", "engine")
"""Sections of a spec that decide how fast it trains, as far as a forecast goes; precision is looked at as well."""


@dataclass(frozen=True)
class Forecast:
    """Seconds of training by trial number, None where nobody can tell from here."""

    seconds: dict[int, float | None]
    total: float | None
    lines: list[str]

    def as_dict(self, ready: ReadySweep) -> dict[str, Any]:
        """For `--json`."""
        trials = [
            {"number": each.trial.number, "values": each.trial.values, "parameters": each.num_parameters,
             "steps": each.total_steps, "seconds": self.seconds.get(each.trial.number)}
            for each in ready.checked
        ]  # fmt: skip
        return {"trials": trials, "num_trials": ready.num_trials, "concurrent": ready.concurrent, "seconds": self.total}


def forecast(ready: ReadySweep) -> Forecast:
    """Times one pass of each kind of network where no earlier run tells its speed; a GPU's speed only runs can tell."""
    speeds: dict[str, tuple[float | None, str]] = {}
    seconds: dict[int, float | None] = {}
    ended = {one.trial.number for one in ready.past if one.has_ended}
    trials = ready.checked or [_unknown(ready, number) for number in range(ready.num_trials)]
    for each in trials:
        key = _speed_key(each.experiment)
        if key not in speeds:
            speeds[key] = _speed(each.experiment, ready.home, ready.concurrent)
        speed = speeds[key][0]
        seconds[each.trial.number] = each.total_steps * each.experiment.batch.size / speed if speed else None
    left = [value for number, value in seconds.items() if number not in ended]
    known = [value for value in left if value is not None]
    total = sum(known) / ready.concurrent if len(known) == len(left) else None
    sources = sorted({source for _, source in speeds.values()})
    lines = [f"expected: {format_duration(total)} with {ready.concurrent} at once, by {', '.join(sources)}"] if total else [
        f"expected: unknown ({', '.join(sources)})"]  # fmt: skip
    if ready.sweep.scheduler.kind in ("asha", "median") and total:
        lines.append(f"scheduler {ready.sweep.scheduler.kind} stops some trials earlier: this is the most it takes")
    return Forecast(seconds, total, lines)


def forecast_table(ready: ReadySweep, expected: Forecast) -> Table:
    """A row a trial; for a search that proposes as it goes, one for all."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    paths = list(ready.sweep.space)
    heads = ("workers", "parameters", "steps", "time")
    names = short_names(paths, ("trial", *heads))
    table.add_column("trial", justify="right", no_wrap=True)
    for path in paths:
        table.add_column(names[path], overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for each in ready.checked:
        values = each.trial.values
        table.add_row(
            str(each.trial.number), *(escape(describe_value(values[path])) if path in values else "" for path in paths),
            _workers(each.experiment, ready), f"{each.num_parameters:,}", f"{each.total_steps:,}",
            _time(expected.seconds.get(each.trial.number)),
        )  # fmt: skip
    if not ready.checked:
        axes = [f"{axis.kind}" for axis in ready.sweep.space.values()]
        table.add_row(f"{ready.num_trials} of", *axes, _workers(ready.experiment, ready), "", f"{ready.total_steps:,}",
                      _time(expected.seconds.get(0)))  # fmt: skip
    return table


def _workers(experiment: Experiment, ready: ReadySweep) -> str:
    gpus = experiment.resources.gpus_per_worker
    each = f"{gpus:g} GPU" if gpus else f"{ready.share.threads} CPU"
    return f"{experiment.resources.max_workers} x {each}"


def _unknown(ready: ReadySweep, number: int) -> CheckedTrial:
    return CheckedTrial(PlannedTrial(number, "", {}), ready.experiment, 0, ready.total_steps)


def _speed_key(experiment: Experiment) -> str:
    spec = experiment.to_dict()
    return repr([{**spec[part], "max_failures": 0} for part in SAME_SPEED] + [spec["training"]["precision"]])


def _speed(experiment: Experiment, home: Home, concurrent: int) -> tuple[float | None, str]:
    """(samples a second, how it is known)."""
    for record in [record for record in list_runs(home) if record.step > 0 and not record.trials][:NEWEST]:
        folder = home.run(record.run_id)
        if record.family == experiment.model.family and folder.spec.exists():
            found = metric_history(folder).get("train/samples_per_second")
            with suppress(UserError):  # a spec of another version
                if found and _speed_key(load_experiment(folder.spec)) == _speed_key(experiment):
                    resources = experiment.resources
                    has_own = record.parent or resources.gpus_per_worker or resources.cpus_per_worker
                    shared = 1 if has_own else concurrent  # a run alone had all of a machine's cores
                    return statistics.median(found.values) / shared, "the speed of earlier runs of this kind"
    if experiment.resources.gpus_per_worker:
        return None, "no earlier run on a GPU tells its speed"
    return _timed(experiment, home) / concurrent, "timed steps on this machine"


def _timed(experiment: Experiment, home: Home) -> float:
    """Samples a second of forward and backward passes on all of this machine's cores."""
    data = open_data(experiment.data, home)
    view = data.train.fullest()
    inputs = ModelInputs.from_experiment(experiment, view.columns, torch.device("cpu"), home=home)
    size = min(experiment.micro_size, len(view))
    objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, data.text)
    network: Any = experiment.family.build_network(experiment.model)
    batch = inputs.prepare_batch(next(held_out_batches(view, inputs.fields, size, size)), view.columns)
    times = []
    for number in range(TIMED_PASSES + 1):
        begin = time.perf_counter()
        losses = objective.loss(network, batch, RowNoise(number, "forecast", 0, torch.device("cpu")))
        sum(losses.values()).backward()
        times.append(time.perf_counter() - begin)
    return size / statistics.median(times[1:])


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else format_duration(seconds)
