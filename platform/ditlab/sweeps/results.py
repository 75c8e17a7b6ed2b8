"""Results of a sweep: what its trials left on the disk, its report, its tracked run, and its
end.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ditlab.errors import RunFailed
from ditlab.home import Home, RunFolder
from ditlab.receipts.records import TAG_PREFIX
from ditlab.reports.sweep_differences import (
    differences_to_best,
    mean_interval,
    not_significantly_different,
)
from ditlab.reports.sweep_pictures import write_samples
from ditlab.reports.sweep_records import (
    ENDED,
    AxisInfo,
    MetricCurve,
    SweepSummary,
    Trial,
    best,
    comparable,
    objectives,
    rank,
    shared_values,
    value_step,
    why_incomparable,
)
from ditlab.reports.sweep_report import settings, write_sweep_report
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep import Pbt, Sweep
from ditlab.spec.sweep_axes import Axis, Choice, Grid, LogUniform
from ditlab.spec.sweep_space import unshared_axes
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import stamped, write_durably
from ditlab.sweeps.folder import (
    SweepFolder,
    current_values,
    find_record,
    read_takeovers,
    sweep_configurations,
    trial_experiment,
)
from ditlab.sweeps.prepare import MEASURED, measured_parts
from ditlab.sweeps.start import StartedSweep
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import MAIN_TAG, JournalFacts, Series, final_values, series_of
from ditlab.tracking.journal import read_content
from ditlab.tracking.names import flatten
from ditlab.tracking.notes import SweepNote
from ditlab.tracking.records import update_record
from ditlab.tracking.review import STATUS_TAG, end_run
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker

LOSS = "train/loss"
# seconds between two points beyond which nothing was trained: the run was interrupted
LONGEST_INTERVAL = 120.0
REPORT_FOLDER = "report"
"""Folder of the report's files among the run's artifacts."""


def summarize_sweep(started: StartedSweep, seconds: float) -> SweepSummary:
    """Collect everything that the report shows, in its present state; `seconds` is the sweep's
    duration so far.
    """
    sweep = started.sweep
    trials = [_trial(sweep, started.home, planned) for planned in started.folder.planned_trials()]
    chooser = started.prepared.chooser
    verdict: Sequence[str] = ()
    if chooser and trials:
        verdict = chooser.sentences(trials)
    return SweepSummary(
        sweep_id=started.folder.sweep_id,
        name=sweep.name,
        metrics=sweep.metrics,
        modes=sweep.modes,
        axes=[AxisInfo(path, _scale(axis)) for path, axis in sweep.space.items()],
        trials=sweep_configurations(sweep, trials),
        search=sweep.search.kind,
        scheduler=sweep.scheduler.kind,
        seconds=seconds,
        total_trials=started.num_trials,
        base=str(sweep.base.get("name", "")),
        num_seeds=sweep.num_seeds,
        unshared=unshared_axes(sweep) if sweep.num_seeds > 1 else (),
        verdict=verdict,
    )


def best_spec(sweep: Sweep, summary: SweepSummary) -> str:
    """Write the best trial as a spec that `ditlab train` takes (YAML); empty where no trial has a
    value.
    """
    found = best(summary)
    if found is None:
        return ""
    spec = trial_experiment(sweep, found).to_dict()
    values = ", ".join(f"{name}={found.metrics[name]:.6g}" for name in summary.metrics)
    if found.members:
        seeds = "seeds" if found.num_seeds > 1 else "seed"
        values += f", means over {found.num_seeds} {seeds}"
    head = (
        f"# {summary.unit.capitalize()} {found.number} (run {found.run_id}) of the sweep "
        f"{summary.name} ({summary.sweep_id}): {values}.\n"
    )
    if isinstance(sweep.scheduler, Pbt) and found.note:
        head += f"# Its values were the last of several: {found.note}.\n"
    return head + dump_yaml({**spec, "name": f"{summary.name}-best"})


def ranking_table(summary: SweepSummary) -> dict[str, list[Any]]:
    """Make a table of the trials or configurations for MLflow: columns by name, the best first;
    `step` is that of the first metric's value.

    Of configurations with the seeds behind their means, the interval of each mean, and that of the
    difference to the best configuration.
    """
    ranked = rank(summary)
    table: dict[str, list[Any]] = {
        summary.unit: [trial.number for trial in ranked],
        "run": [trial.run_id for trial in ranked],
        "status": [trial.status for trial in ranked],
        "step": [value_step(summary, trial) for trial in ranked],
    }
    if summary.num_seeds > 1:
        table["seeds"] = [len(trial.by_seed) for trial in ranked]
    for name in summary.metrics:
        table |= _metric_columns(summary, ranked, name)
    table |= _difference_columns(summary, ranked)
    for axis in summary.axes:
        table[axis.path] = [trial.values.get(axis.path) for trial in ranked]
    table["seconds"] = [round(trial.seconds, 1) for trial in ranked]
    table["note"] = [trial.note for trial in ranked]
    return table


def _metric_columns(
    summary: SweepSummary, ranked: Sequence[Trial], name: str
) -> dict[str, list[Any]]:
    """Columns of a metric; of configurations with the interval of each mean."""
    columns = {name: [trial.metrics.get(name) for trial in ranked]}
    if summary.num_seeds > 1:
        intervals = [
            mean_interval(trial, name).to_dict() if trial.by_seed else {} for trial in ranked
        ]
        columns[f"{name} low"] = [interval.get("low") for interval in intervals]
        columns[f"{name} high"] = [interval.get("high") for interval in intervals]
    return columns


def _difference_columns(summary: SweepSummary, ranked: Sequence[Trial]) -> dict[str, list[Any]]:
    """Columns of the difference to the best configuration; none where there are no differences."""
    differences = {
        each.configuration.number: each.interval.to_dict() for each in differences_to_best(summary)
    }
    if not differences:
        return {}
    found = [differences.get(trial.number, {}) for trial in ranked]
    return {
        "to the best": [interval.get("mean") for interval in found],
        "to the best, low": [interval.get("low") for interval in found],
        "to the best, high": [interval.get("high") for interval in found],
    }


def _trial(sweep: Sweep, home: Home, planned: Trial) -> Trial:
    folder = home.run(planned.run_id)
    record = find_record(home, planned)
    if record is None:
        return planned
    history, measured, device_hours = read_results(sweep, folder)
    curves = {
        name: MetricCurve(history[name].steps.tolist(), history[name].values.tolist())
        for name in (*sweep.metrics, LOSS)
        if name in history
    }
    note = "; ".join(takeover.sentence() for takeover in read_takeovers(folder))
    if record.status == "failed" and record.message:
        note = record.message
    return replace(
        planned,
        values=current_values(home, planned),
        status=record.status,
        step=record.step,
        total_steps=record.total_steps,
        seconds=_training_seconds(history),
        device_hours=device_hours,
        metrics=final_values(history),
        curves=curves,
        measured=measured,
        note=note,
    )


def _training_seconds(history: Mapping[str, Series]) -> float:
    """Time between the points of a trial's metrics, without pauses between sessions."""
    if not history:
        return 0.0
    times = np.unique(np.concatenate([series.times for series in history.values()]))
    intervals = np.diff(times) / 1000
    return float(intervals[intervals <= LONGEST_INTERVAL].sum())


def read_results(
    sweep: Sweep, folder: RunFolder
) -> tuple[dict[str, Series], dict[tuple[str, str], str], dict[str, float]]:
    """Read a trial's metrics, `measured_parts` of what they are measured with, and its hours of
    devices; nothing without a journal."""
    try:
        content = read_content(folder.journal)
    except OSError:
        return {}, {}, {}
    facts = JournalFacts.of(content)
    tags = {group: facts.tags.get(f"{TAG_PREFIX}{group}", "") for group in MEASURED}
    parts = measured_parts(sweep, tags, facts.dataset.get("fingerprint", ""))
    return series_of(content), parts, facts.device_hours


def _scale(axis: Axis) -> Literal["linear", "log", "category"]:
    """Scale on which the report draws an axis."""
    if isinstance(axis, Choice | Grid):
        are_numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values
        )
        return "linear" if are_numbers else "category"
    return "log" if isinstance(axis, LogUniform) else "linear"


class ParentRun:
    """Tracked run of one sweep: its space, counts, best value, ranking and report.

    Use as a context manager, whose end waits a bounded time for MLflow.
    """

    def __init__(
        self,
        folder: SweepFolder,
        home: Home,
        sweep: Any,
        base: Experiment,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """`sweep` is a `Sweep`, or the spec of an add-on's sweep with the same properties; `tags`
        are added.
        """
        self._folder = folder
        self._sweep = sweep
        self._base = base
        self._tags = tags or {}
        self._tracker = RunTracker(folder.folder, base.tracking.uri, home, budget=None)
        self._num_logged = -1
        self._has_ended = False

    def __enter__(self) -> ParentRun:
        base = self._base
        sweep = self._sweep
        tracker = self._tracker
        stored = sweep.to_dict()
        kept = ("search", "scheduler", "trials", "samples", "seeds", "seed", "fixed")
        parameters = flatten({key: stored[key] for key in kept if key in stored})
        parameters |= {f"space.{path}": json.dumps(axis) for path, axis in stored["space"].items()}
        parameters |= {"metric": ", ".join(sweep.metrics), "mode": ", ".join(sweep.modes)}
        tags = {
            **source_tags(),
            "ditlab.kind": "sweep",
            STATUS_TAG: "running",
            MAIN_TAG: sweep.metrics[0],
        }
        tags |= self._tags
        tracker.start(sweep.name, base.tracking.experiment, base.model.family, parameters, tags)
        tracker.log_artifact(self._folder.spec)
        self._log_note("running", 0, {})
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if kind is not None and not self._has_ended:
            self._tracker.end("interrupted" if is_interrupted else "failed")
        self._tracker.close(0.0 if is_interrupted else CATCH_UP_TIMEOUT)

    def log_progress(self, trials: Sequence[Trial], leader: Trial | None) -> None:
        """Log the counts by status and the best value so far, once for each number of ended
        trials.
        """
        ended = [trial for trial in trials if trial.has_ended]
        if len(ended) <= self._num_logged:
            return
        self._num_logged = len(ended)
        counts = Counter(trial.status for trial in ended)
        final = leader.metrics if leader else {}
        values = {f"trials/{status}": float(counts[status]) for status in ENDED}
        values |= {f"best/{name}": final[name] for name in self._sweep.metrics if name in final}
        self._tracker.journal.log_metrics(len(ended), values)

    def end(
        self,
        status: str,
        summary: SweepSummary,
        files: Sequence[Path],
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        """Log the ranking, the best trial with its `spec`, and the report's files, and end the
        run.
        """
        tracker = self._tracker
        ranking = ranking_table(summary) if summary.trials else {}
        if ranking:
            tracker.log_table(ranking, "ranking.json")
        leader = ""
        found = best(summary)
        if found:
            leader = f"{summary.unit} {found.number} (run {found.run_id})"
            tags = {
                f"ditlab.best_{summary.unit}": str(found.number),
                "ditlab.best_run": found.run_id,
            }
            for path, value in found.values.items():
                tags[f"ditlab.best.{path}"] = json.dumps(value)
            tracker.set_tags(tags)
        for file in files:
            tracker.log_artifact(file, REPORT_FOLDER)
        tracker.set_tags({STATUS_TAG: status})
        names = [f"{REPORT_FOLDER}/{file.name}" for file in files]
        pictures = [name for name in names if name.endswith(".png")]
        page = next((name for name in names if name.endswith(".html")), "")
        self._log_note(
            status, summary.total_trials, ranking, leader, flatten(spec or {}), pictures, page
        )
        tracker.end(status if status in ("failed", "interrupted") else "finished")  # type: ignore[arg-type]
        self._has_ended = True

    def _log_note(self, status: str, *facts: Any) -> None:
        """Renew what MLflow shows with the run: ranking, best spec, figures, how to go on."""
        sweep = self._sweep
        note = SweepNote(
            self._folder.sweep_id, sweep.name, status, sweep.metrics, sweep.modes, *facts
        )
        self._tracker.log_note(note.text())


def _result(summary: SweepSummary, trial: Trial) -> dict[str, Any]:
    """A trial's values and metrics in JSON's types; of a configuration its seeds and intervals."""
    found: dict[str, Any] = {
        "number": trial.number,
        "run_id": trial.run_id,
        "values": dict(trial.values),
        "step": value_step(summary, trial),
        "metrics": {name: trial.metrics[name] for name in summary.metrics},
    }
    if trial.members:
        found["seeds"] = sorted(trial.by_seed)
        found["intervals"] = {
            name: mean_interval(trial, name).to_dict() for name in summary.metrics
        }
    return found


@dataclass(frozen=True)
class SweepResult:
    """Result of one session of a sweep."""

    sweep_id: str
    status: str
    """finished | interrupted | stopped (a budget was used up)."""
    summary: SweepSummary
    report: Path
    reason: str = ""
    """Clause on the budget that was used up; empty for another end."""

    @property
    def exit_code(self) -> int:
        """Exit code of `ditlab tune`."""
        return 130 if self.status == "interrupted" else 0

    def to_dict(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        summary = self.summary
        found: dict[str, Any] = {
            "run_id": self.sweep_id,
            "status": self.status,
            "reason": self.reason,
            "trials": self._trials(),
        }
        if summary.num_seeds > 1:
            ranked = [trial for trial in rank(summary) if objectives(summary, trial) is not None]
            differences = differences_to_best(summary)
            found["configurations"] = [_result(summary, configuration) for configuration in ranked]
            found["differences"] = [each.to_dict() for each in differences]
            found["not_significantly_different"] = not_significantly_different(differences)
        if summary.verdict:
            found["verdict"] = list(summary.verdict)
        leader = best(summary)
        groups = [
            {
                "where": shared_values(summary, group),
                "trials": len(group),
                **_result(summary, group[0]),
            }
            for group in comparable(summary)
        ]
        return {
            **found,
            "best": leader and _result(summary, leader),
            "why_no_best": why_incomparable(summary),
            "best_of_comparable": groups,
            "report": str(self.report),
        }

    def _trials(self) -> list[dict[str, Any]]:
        """Every run in JSON's types, those of a configuration together, the best first."""
        found = []
        for each in rank(self.summary):
            for trial in each.members or [each]:
                state = {
                    "status": trial.status,
                    "step": trial.step,
                    "metrics": {name: trial.metrics.get(name) for name in self.summary.metrics},
                    "note": trial.note,
                }
                found.append({**trial.to_dict(), **state})
        return found


def finish_sweep(
    started: StartedSweep,
    status: str,
    seconds: float,
    parent: ParentRun,
    warn: Callable[[str], None],
    reason: str = "",
) -> SweepResult:
    """Write the report, and end the records and the tracked runs; `reason` is the budget that
    stopped the sweep.

    Raises RunFailed where all trials have ended and none has a value of the metric.
    """
    if status != "stopped":
        reason = ""
    _end_interrupted_runs(started)
    folder = started.folder
    summary = summarize_sweep(started, seconds)
    num_ended = sum(trial.has_ended for trial in summary.trials)
    update_record(folder.folder, status=status, step=num_ended, message=reason)
    files = _write_report(started, summary, warn)
    has_value = any(objectives(summary, trial) is not None for trial in summary.trials)
    if status == "finished" and not has_value:
        parent.end("failed", summary, files)
        notes = sorted({trial.note.partition("\n")[0] for trial in summary.runs if trial.note})
        why = f" ({notes[0][:300]})" if notes else ""
        message = (
            f"sweep {summary.sweep_id}: no trial gave a value of {summary.metrics[0]}{why}; see "
            f"{shlex.quote(str(folder.report))}."
        )
        update_record(folder.folder, status="failed", message=message)
        raise RunFailed(message, kind="crash")
    leader = best(summary)
    spec = trial_experiment(started.sweep, leader).to_dict() if leader else None
    parent.end(status, summary, files, spec)
    return SweepResult(summary.sweep_id, status, summary, folder.report / "report.html", reason)


def _end_interrupted_runs(started: StartedSweep) -> None:
    """Mark trials whose process is gone as interrupted, in their records and in MLflow, which would
    show one that was killed or paused as running for ever.
    """
    home = started.home
    for trial in started.folder.planned_trials():
        record = find_record(home, trial)
        run = home.run(trial.run_id)
        if record is None or record.status not in ("running", "interrupted"):
            continue
        if record.status == "running":
            update_record(run, status="interrupted")
        if run.journal.exists():
            with RunTracker(run, started.prepared.base.tracking.uri, home) as tracker:
                end_run(tracker, "interrupted")


def _write_report(
    started: StartedSweep, summary: SweepSummary, warn: Callable[[str], None]
) -> list[Path]:
    """Write the report with samples and the best spec, and return its files; those written so far
    where the disk refuses or a signal comes: the sweep's result is known without it.
    """
    report = started.folder.report
    resume = f"ditlab tune --resume {summary.sweep_id}"
    files: list[Path] = []
    try:
        spec = best_spec(started.sweep, summary)
        rows = []
        for trial in rank(summary):
            title = f"{summary.unit} {trial.number}: {settings(summary, trial, {})}"
            rows.append((title, started.home.run(trial.run_id).media))
        samples = write_samples(rows, report / "samples.png")
        files += write_sweep_report(summary, report, spec, resume, samples)
        if spec:
            files.append(write_durably(report / "best.yaml", stamped(spec).encode()))
    except OSError as error:
        warn(f"{report} cannot be written ({error.strerror}).")
    except KeyboardInterrupt:
        warn(f"a signal ended the drawing of the report: `{resume}` draws it.")
    return files
