"""Results of a sweep's trials, read from what each run left on the disk."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ditlab.home import Home, RunFolder
from ditlab.reports.sweep_records import AxisInfo, MetricCurve, SweepSummary, Trial, best, rank
from ditlab.spec.sweep import Pbt, Sweep
from ditlab.spec.sweep_axes import Axis, Choice, Grid, LogUniform
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.folder import find_record
from ditlab.sweeps.start import StartedSweep
from ditlab.sweeps.trials import PastCurve, PlannedTrial, read_takeovers, trial_experiment
from ditlab.tracking.history import Series, final_values, metric_history
from ditlab.tracking.records import RunRecord

LOSS = "train/loss"
LONGEST_INTERVAL = 120.0  # seconds between two points beyond which nothing was trained: the run was interrupted


def summarize_sweep(started: StartedSweep, seconds: float) -> SweepSummary:
    """Collect everything that the report shows, in its present state; `seconds` is the sweep's duration so far."""
    sweep = started.sweep
    return SweepSummary(
        sweep_id=started.folder.sweep_id,
        name=sweep.name,
        metrics=sweep.metrics,
        modes=sweep.modes,
        axes=[AxisInfo(path, _scale(axis)) for path, axis in sweep.space.items()],
        trials=[_trial(sweep, started.home, planned) for planned in started.folder.planned_trials()],
        search=sweep.search.kind,
        scheduler=sweep.scheduler.kind,
        seconds=seconds,
        total_trials=started.num_trials,
        base=str(sweep.base.get("name", "")),
    )


def best_spec(sweep: Sweep, summary: SweepSummary) -> str:
    """Write the best trial as a spec that `ditlab train` takes (YAML); empty where no trial has a value."""
    found = best(summary)
    if found is None:
        return ""
    experiment = trial_experiment(sweep, PlannedTrial(found.number, found.run_id, dict(found.values)))
    spec = experiment.to_dict()
    value = ", ".join(f"{name}={found.metrics[name]:.6g}" for name in summary.metrics)
    head = f"# Trial {found.number} (run {found.run_id}) of the sweep {summary.name} ({summary.sweep_id}): {value}.\n"
    if isinstance(sweep.scheduler, Pbt) and found.note:
        head += f"# Its values were the last of several: {found.note}.\n"
    return head + dump_yaml({**spec, "name": f"{summary.name}-best"})


def past_curves(sweep: Sweep, summary: SweepSummary) -> list[PastCurve]:
    """Select the metric's curve of each finished or stopped trial, without step 0, for the schedulers."""
    found = []
    for trial in summary.trials:
        curve = trial.curves.get(sweep.metrics[0])
        if curve and trial.status in ("finished", "stopped"):
            points = [(step, value) for step, value in zip(curve.steps, curve.values, strict=True) if step > 0]
            found.append(PastCurve(trial.run_id, [step for step, _ in points], [value for _, value in points]))
    return found


def ranking_table(summary: SweepSummary) -> dict[str, list[Any]]:
    """Make a table of the trials for MLflow: columns by name, the best trial first."""
    ranked = rank(summary)
    table: dict[str, list[Any]] = {
        "trial": [trial.number for trial in ranked],
        "run": [trial.run_id for trial in ranked],
        "status": [trial.status for trial in ranked],
        "step": [trial.step for trial in ranked],
    }
    for name in summary.metrics:
        table[name] = [trial.metrics.get(name) for trial in ranked]
    for axis in summary.axes:
        table[axis.path] = [trial.values.get(axis.path) for trial in ranked]
    table["seconds"] = [round(trial.seconds, 1) for trial in ranked]
    table["note"] = [trial.note for trial in ranked]
    return table


def _trial(sweep: Sweep, home: Home, planned: PlannedTrial) -> Trial:
    folder, record = home.run(planned.run_id), find_record(home, planned)
    if record is None:
        return Trial(planned.number, planned.run_id, planned.values)
    history = metric_history(folder)
    takeovers = read_takeovers(folder)
    curves = {name: history[name] for name in (*sweep.metrics, LOSS) if name in history}
    return Trial(
        number=planned.number,
        run_id=planned.run_id,
        values=takeovers[-1].values if takeovers else planned.values,
        status=record.status,
        step=record.step,
        total_steps=record.total_steps,
        seconds=_training_seconds(history),
        metrics=final_values(history),
        curves={name: MetricCurve(series.steps.tolist(), series.values.tolist()) for name, series in curves.items()},
        note=_note(folder, record),
    )


def _note(folder: RunFolder, record: RunRecord) -> str:
    if record.status == "failed":
        return record.message
    return "; ".join(takeover.sentence() for takeover in read_takeovers(folder))


def _training_seconds(history: Mapping[str, Series]) -> float:
    """Sum the intervals between a trial's points, without pauses between sessions."""
    if not history:
        return 0.0
    times = np.unique(np.concatenate([series.times for series in history.values()]))
    intervals = np.diff(times) / 1000
    return float(intervals[intervals <= LONGEST_INTERVAL].sum())


def _scale(axis: Axis) -> Any:
    """Scale on which the report draws an axis."""
    if isinstance(axis, LogUniform):
        return "log"
    if isinstance(axis, Choice | Grid):
        return "linear" if all(_is_number(value) for value in axis.values) else "category"
    return "linear"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
