"""What came out of a sweep's trials, read from what each run left."""

import itertools
from collections.abc import Mapping
from typing import Any

from ditlab.home import Home, RunFolder
from ditlab.reports.sweeps.ranking import best, rank
from ditlab.reports.sweeps.records import AxisInfo, MetricCurve, SweepSummary, Trial
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.spec.sweep.axes import Axis, Choice, Grid, LogUniform
from ditlab.spec.sweep.spec import Pbt, Sweep
from ditlab.sweeps.folder import record_of
from ditlab.sweeps.prepare import ReadySweep
from ditlab.sweeps.takeovers import exploits
from ditlab.sweeps.trials import PastCurve, PlannedTrial, trial_experiment
from ditlab.tracking.journal.history import Series, metric_history
from ditlab.tracking.records import RunRecord

LOSS = "train/loss"
LONGEST_PAUSE = 120.0  # seconds between two points beyond which nothing was trained: the run was interrupted


def collect(ready: ReadySweep, seconds: float) -> SweepSummary:
    """Everything that a report is made of, as it stands now."""
    sweep = ready.sweep
    assert ready.folder
    trials = [_trial(sweep, ready.home, planned) for planned in ready.folder.trials()]
    return SweepSummary(
        sweep_id=ready.folder.folder.run_id,
        name=sweep.name,
        metrics=sweep.metrics,
        modes=sweep.modes,
        axes=[AxisInfo(path, _scale(axis)) for path, axis in sweep.space.items()],
        trials=trials,
        search=sweep.search.kind,
        scheduler=sweep.scheduler.kind,
        seconds=seconds,
        total_trials=ready.num_trials,
        base=str(sweep.base.get("name", "")),
    )


def best_spec(sweep: Sweep, summary: SweepSummary) -> str:
    """The best trial as a spec that `ditlab train` takes (YAML); empty where no trial has a value."""
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
    """For schedulers: the metric of each trial that has ended, up to its last evaluation."""
    found = []
    for trial in summary.trials:
        curve = trial.curves.get(sweep.metrics[0])
        if curve and trial.status in ("finished", "stopped"):
            places = [place for place, step in enumerate(curve.steps) if step > 0]
            steps, values = [curve.steps[place] for place in places], [curve.values[place] for place in places]
            found.append(PastCurve(trial.run_id, steps, values))
    return found


def ranking_table(summary: SweepSummary) -> dict[str, list[Any]]:
    """Columns by name, best first: for MLflow and for terminals."""
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
    folder, record = home.run(planned.run_id), record_of(home, planned.run_id)
    if record is None:
        return Trial(planned.number, planned.run_id, planned.values, "waiting", 0, 0, 0.0, {}, {})
    history = metric_history(folder)
    taken = exploits(folder)
    return Trial(
        number=planned.number,
        run_id=planned.run_id,
        values=taken[-1].values if taken else planned.values,
        status=record.status,
        step=record.step,
        total_steps=record.total_steps,
        seconds=_seconds(history),
        metrics={name: series.values[-1] for name, series in history.items() if series.values},
        curves={
            name: MetricCurve(history[name].steps, history[name].values) for name in (*sweep.metrics, LOSS) if name in history
        },
        note=_note(folder, record),
    )


def _note(folder: RunFolder, record: RunRecord) -> str:
    if record.status == "failed":
        return record.message
    return "; ".join(exploit.sentence() for exploit in exploits(folder))


def _seconds(history: Mapping[str, Series]) -> float:
    """Time between a trial's points, pauses between sessions left out."""
    times = sorted({time for series in history.values() for time in series.times})
    gaps = [(after - before) / 1000 for before, after in itertools.pairwise(times)]
    return sum(gap for gap in gaps if gap <= LONGEST_PAUSE)


def _scale(axis: Axis) -> Any:
    if isinstance(axis, LogUniform):
        return "log"
    if isinstance(axis, Choice | Grid):
        return "linear" if all(_is_number(value) for value in axis.values) else "category"
    return "linear"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
