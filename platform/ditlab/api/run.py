"""A run in DITLAB_HOME: its record, metrics, samples, evaluation, figures and export. Imports torch on use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, Unpack, overload

import pyarrow as pa

from ditlab.api.run_card import ShownRun, run_card, runs_table
from ditlab.errors import UserError, nearest
from ditlab.home import Home, RunFolder
from ditlab.notebook_html import never_failing
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.plugins import check_installed
from ditlab.tracking.history import Series, metric_history
from ditlab.tracking.records import FoundRun, RunRecord, find_training_run, list_runs, read_record

if TYPE_CHECKING:
    from ditlab.analysis.evaluation import CheckpointEvaluation
    from ditlab.analysis.figures import FigureSet
    from ditlab.analysis.opened_run import OpenedRun
    from ditlab.analysis.plot import Plot
    from ditlab.analysis.sample_options import SampleKeywords
    from ditlab.analysis.sample_set import SampleSet
    from ditlab.reports.time_summary import TimeSummary
    from ditlab.runs.description import RunDescription
    from ditlab.runs.events import RunEvent

_log = logging.getLogger("ditlab")
RunT = TypeVar("RunT", bound=ShownRun)


@dataclass(frozen=True)
class ExportedWeights:
    """Files of an export; `load_export(folder)` reads them."""

    run_id: str
    step: int
    """Optimiser step of the weights."""
    folder: Path
    files: list[Path]
    """`weights.safetensors`, `spec.yaml`, and `tokenizer.json` for a model of text."""

    def to_dict(self) -> dict[str, Any]:
        """The export in JSON's types, for `--json`."""
        return {"run_id": self.run_id, "step": self.step, "files": [str(file) for file in self.files]}


def metric_table(chosen: Mapping[str, Series]) -> pa.Table:
    """A row a step, in the order of the steps: `step`, `time` of its first point, and a column a metric."""
    times: dict[int, int] = {}
    for series in chosen.values():
        for step, time in zip(series.steps.tolist(), series.times.tolist(), strict=True):
            times[step] = min(time, times.get(step, time))
    steps = sorted(times)
    columns = {
        "step": pa.array(steps, pa.int64()),
        "time": pa.array([times[step] for step in steps], pa.timestamp("ms", tz="UTC")),
    }
    for name, series in chosen.items():
        values = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        columns[name] = pa.array([values.get(step) for step in steps], pa.float64())
    return pa.table(columns)


@dataclass(frozen=True)
class Run:
    """A training run. Find one with `open_run` or `find_runs`; `train` returns one."""

    folder: RunFolder = field(repr=False)
    """Paths of the run's files."""
    record: RunRecord
    """Name, family, status and steps, as they were when the run was opened; `refresh` reads them again."""
    home: Home = field(repr=False)
    warn: Callable[[str], None] = field(default=_log.warning, repr=False, compare=False)
    """Receives warnings and remarks."""
    on_progress: Progress = field(default=ignore_progress, repr=False, compare=False)
    """Receives the progress of work with the run's weights."""

    @property
    def id(self) -> str:
        """Eight hexadecimal digits."""
        return self.folder.run_id

    @property
    def name(self) -> str:
        """The spec's `name`."""
        return self.record.name

    @property
    def status(self) -> str:
        """`running`, `finished`, `failed`, `interrupted` or `stopped` (by a sweep)."""
        return self.record.status

    @property
    def step(self) -> int:
        """Optimiser step of the last checkpoint."""
        return self.record.step

    @cached_property
    def spec(self) -> Experiment:
        """The resolved experiment. Raises UserError where a package that it needs is not installed here."""
        check_installed(self.record.plugins, f"run {self.folder.run_id}")
        return load_recorded_experiment(self.folder.spec)

    def refresh(self) -> Run:
        """The run with its record as it is now. Raises UserError where the record is gone."""
        return Run(self.folder, read_record(self.folder), self.home, self.warn, self.on_progress)

    def metrics(self, *names: str) -> pa.Table:
        """Metrics from the run's journal, one row a step, in the order of the steps.

        Columns: `step` (int64), `time` (timestamp of the step's first point, UTC) and each metric by its MLflow name
        (float64, null where the metric was not logged at that step). With `names`, only these metrics and the steps
        that have one of them. Raises UserError for an unknown name.
        """
        return metric_table(self._history(names))

    def plot(self, *names: str) -> Plot:
        """Curves of metrics over the steps; without names, the training loss and the held-out metrics.

        Raises UserError for an unknown name, and without names for a run that has logged no training loss.
        """
        chosen = self._history(names or ("train/loss",))
        from ditlab.analysis.plot import loss_plot, metric_plot

        return metric_plot(chosen) if names else loss_plot(metric_history(self.folder))

    def sample(self, num: int | None = None, **keywords: Unpack[SampleKeywords]) -> SampleSet:
        """Draw `num` samples from the newest checkpoint's averaged weights (default: 64, or 4 of each prompt).

        The keywords are the options of `ditlab sample`. Raises UserError where the run has no checkpoint yet, and for
        an option that does not fit its family.
        """
        saved = self._opened().saved()
        from ditlab.analysis.drawing import draw
        from ditlab.analysis.sample_options import SampleOptions

        return draw(saved, SampleOptions.of(num, keywords))

    def evaluate(
        self, *, quality: int | None = None, rows: int | None = None, batch: int = 256, overrides: Sequence[str] = ()
    ) -> CheckpointEvaluation:
        """Evaluate the newest checkpoint over all held-out samples, and add the result to the run.

        With `quality`, that many samples are drawn and measured. With `rows` (only the first held-out samples) or
        `overrides` (`sampling.KEY=VALUE`: quality under other sampling settings; `encoders.KEY=PLACE`) nothing is added
        to the run. `batch` is the number of samples at once. Raises UserError where nothing is held out, or quality
        cannot be measured.
        """
        if rows is None and not overrides:
            self.check_writable()
        saved = self._opened().saved()
        from ditlab.analysis.evaluation import evaluate_run

        return evaluate_run(saved, quality, rows, batch, overrides)

    def figures(self, seed: int = 0) -> FigureSet:
        """Figures of the run's family from its trained weights; `seed` is that of the samples in them."""
        saved = self._opened().saved()
        from ditlab.analysis.figures import run_figures

        return run_figures(saved, seed)

    def log_figures(self, files: Sequence[Path]) -> int:
        """Log files as the run's artifacts, under `figures`; return how many of its records wait for MLflow.

        Raises UserError as `check_writable` does.
        """
        self.check_writable()
        from ditlab.analysis.opened_run import logged_records

        with logged_records(self._opened().tracker()) as records:
            for file in files:
                records.tracker.log_artifact(file, "figures")
        return records.num_unsent

    def export(self, folder: str | Path, *, averaged: bool = True, ema: str | float | None = None) -> ExportedWeights:
        """Write the weights as safetensors, with the spec that rebuilds the network and its tokeniser if it has one.

        `averaged`: the moving average where there is one, else the weights themselves; `ema`: an average of this
        relative length, rebuilt. Raises UserError where the run has no checkpoint yet, or the disk refuses.
        """
        saved = self._opened().saved()
        from ditlab.analysis.averages import export_saved

        files = export_saved(saved, Path(folder), averaged, ema)
        return ExportedWeights(self.id, saved.step, Path(folder), files)

    def describe(self) -> RunDescription:
        """The run's status, spec, last metrics, checkpoints and sizes, and what MLflow has not received."""
        from ditlab.runs.description import describe_run

        return describe_run(self.home, FoundRun(self.folder, read_record(self.folder)))

    def time(self) -> TimeSummary | None:
        """Where the time of the run's logged steps went, by phase; None where it has logged no times."""
        from ditlab.runs.description import recorded_time

        return recorded_time(self.folder)

    def events(self) -> list[RunEvent]:
        """Starts, evaluations, checkpoints that are kept, failures and ends, by time."""
        from ditlab.runs.events import EventReader

        return EventReader(self.folder).read_all()

    def report(self, path: str | Path | None = None) -> Path:
        """Write the run's page, one HTML file, to `path` (None: `report.html` in its folder); return the file's path.

        Needs no torch and no network. Raises UserError where the disk refuses.
        """
        from ditlab.api.pages import write_report

        return write_report(self.home, self.folder, path)

    def check_writable(self) -> None:
        """Raise UserError where what is added to the run would go into the home from which this one was copied."""
        self.home.check_place()

    @never_failing
    def _repr_html_(self) -> str:
        return run_card(self)

    def _history(self, names: Sequence[str]) -> dict[str, Series]:
        """The named metrics from the journal; without names, all. Raises UserError for an unknown name."""
        history = metric_history(self.folder)
        for name in names:
            if name not in history:
                raise UserError(f"run {self.id} has no metric {name!r}; {nearest(name, list(history))}")
        return {name: history[name] for name in names or history}

    def _opened(self) -> OpenedRun:
        from ditlab.analysis.opened_run import OpenedRun

        return OpenedRun(self.home, self.folder, self.record, self.spec, self.warn, self.on_progress)


def open_run(name: str, *, warn: Callable[[str], None] | None = None, on_progress: Progress = ignore_progress) -> Run:
    """Open the run that `name` names: an id, a unique prefix of one, or a run's name (its newest run).

    `warn` receives warnings and remarks on the run and on work with it; None: the logger `ditlab`. `on_progress` is
    called with (task, done, total or None, unit) all along that work.
    Raises UserError for an unknown run, naming the nearest, for a prefix of several, and for a sweep.
    """
    home = Home.from_environment()
    found, warn = find_training_run(home, name), warn or _log.warning
    if found.note:
        warn(found.note)
    return Run(found.folder, found.record, home, warn, on_progress)


def find_runs(*, name: str | None = None, status: str | None = None, family: str | None = None) -> FoundRuns[Run]:
    """Training runs in DITLAB_HOME, the newest first: all, or those of a name, status or family. Sweeps are not listed;
    their trials are. A notebook shows the list as a table."""
    home = Home.from_environment()
    wanted: dict[str, Any] = {"name": name, "status": status, "family": family}
    chosen = {key: value for key, value in wanted.items() if value is not None}
    return FoundRuns(
        Run(home.run(record.run_id), record, home)
        for record in list_runs(home)
        if not record.trials and all(getattr(record, key) == value for key, value in chosen.items())
    )


class FoundRuns(list[RunT]):
    """Runs, the newest first: a list, and a table in a notebook. Its parts, as in `runs[:5]`, are tables as well."""

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> RunT: ...
    @overload
    def __getitem__(self, index: slice, /) -> FoundRuns[RunT]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> RunT | FoundRuns[RunT]:
        return FoundRuns(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    @never_failing
    def _repr_html_(self) -> str:
        return runs_table(self)
