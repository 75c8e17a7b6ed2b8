"""A run in DITLAB_HOME: its record, metrics, samples, evaluation, figures and export. Imports torch
on use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from ditlab.errors import UserError, nearest
from ditlab.home import Home, RunFolder
from ditlab.parts import absent_part, display_html, load_part, named
from ditlab.progress import Progress, ignore_progress
from ditlab.runs.cores import computing_beside_others, recorded_threads, sleep_at_barriers
from ditlab.runs.description import run_time
from ditlab.runs.locks import lock_run
from ditlab.spec.experiment import Experiment, check_name
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.plugins import check_installed
from ditlab.tracking.access import resolve_tracking_uri
from ditlab.tracking.history import NAME_TAG, Series, metric_history
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import (
    FoundRun,
    RunRecord,
    find_training_run,
    list_runs,
    read_record,
    update_record,
)
from ditlab.tracking.review import renew_note
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker

if TYPE_CHECKING:
    from ditlab.analysis.drawing import SampleSet
    from ditlab.analysis.figures import FigureSet
    from ditlab.analysis.opened_run import OpenedRun
    from ditlab.analysis.plot import Plot
    from ditlab.analysis.sample_options import SampleKeywords
    from ditlab.analysis.saved_evaluation import CheckpointEvaluation
    from ditlab.reports.time_summary import TimeSummary
    from ditlab.runs.description import RunDescription
    from ditlab.runs.events import RunEvent

_log = logging.getLogger("ditlab")


@dataclass(frozen=True)
class ExportedWeights:
    """Files of an export; `load_export(folder)` reads them."""

    run_id: str
    step: int
    """Optimiser step of the weights."""
    folder: Path
    files: list[Path]
    """`weights.safetensors`, `spec.yaml`, and `tokenizer.json` for a model of text; other formats
    have others.
    """

    def to_dict(self) -> dict[str, Any]:
        """The export in JSON's types, for `--json`."""
        return {
            "run_id": self.run_id,
            "step": self.step,
            "files": [str(file) for file in self.files],
        }


@dataclass(frozen=True)
class Run:
    """A training run. Find one with `open_run` or `find_runs`; `train` returns one."""

    folder: RunFolder = field(repr=False)
    """Paths of the run's files."""
    record: RunRecord
    """Name, family, status and steps, as they were when the run was opened; `refresh` reads them
    again.
    """
    home: Home = field(repr=False)
    warn: Callable[[str], None] = field(default=_log.warning, repr=False, compare=False)
    """Receives warnings and remarks."""
    on_progress: Progress = field(default=ignore_progress, repr=False, compare=False)
    """Receives the progress of work with the run's weights."""
    anyway: bool = field(default=False, repr=False, compare=False)
    """True to go on with other data than the run's; nothing of it is added to the run."""

    if not TYPE_CHECKING:  # else any misspelt name would pass for a method

        def __getattr__(self, name: str) -> Any:
            """Return a method of an add-on or another package
            (`ditlab.parts.Parts.run_methods`).
            """
            target = None if name.startswith("_") else named("run_methods").get(name)
            if target is None:
                raise AttributeError(
                    absent_part("method", name) or f"'Run' object has no attribute {name!r}"
                )
            return partial(load_part("method", name, target), self)

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *named("run_methods")])

    @property
    def id(self) -> str:
        """Eight hexadecimal digits."""
        return self.folder.run_id

    @property
    def name(self) -> str:
        """The spec's `name`, or the one that `rename` gave."""
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
        """The resolved experiment. Raises UserError where a package that it needs is not installed
        here.
        """
        check_installed(self.record.plugins, f"run {self.folder.run_id}")
        return load_recorded_experiment(self.folder.spec)

    def refresh(self) -> Run:
        """The run with its record as it is now. Raises UserError where the record is gone."""
        return replace(self, record=read_record(self.folder))

    def rename(self, name: str) -> Run:
        """The run under another name, in its record and in MLflow; its spec keeps the name that it
        was trained under.

        Raises UserError for a name that a spec could not have or that is a run's id, and while a
        process trains it.
        """
        try:
            check_name(name)
        except ValueError as error:
            raise UserError(str(error)) from None
        if self.home.run(name).path.exists():
            raise UserError(
                f"name {name!r} is the id of a run, which commands would take it for; choose "
                "another."
            )
        with lock_run(self.folder):
            renamed = replace(self, record=update_record(self.folder, name=name))
            address = resolve_tracking_uri(self.record.tracking_uri or None, self.home)
            tracker = RunTracker(self.folder, address, self.home, warn=self.warn)
            tracker.set_tags({NAME_TAG: name})
            renew_note(tracker)
            tracker.close(CATCH_UP_TIMEOUT)
        return renamed

    def metrics(self, *names: str) -> pa.Table:
        """Metrics from the run's journal, one row a step, ascending; with `names`, these and the
        steps that have one.

        Columns: `step` (int64), `time` (timestamp of the step's first point, UTC) and each metric
        by its MLflow name (float64, null where it was not logged at that step). Raises UserError
        for an unknown name.
        """
        chosen = self._history(names)
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

    def plot(self, *names: str) -> Plot:
        """Curves of metrics over the steps; without names, the training loss and the held-out
        metrics. Raises UserError for an unknown name, and without names for a run that has logged
        no training loss."""
        chosen = self._history(names or ("train/loss",))
        from ditlab.analysis.plot import Plot, metric_plot
        from ditlab.reports.figures import loss_figure

        if names:
            return metric_plot(chosen)
        return Plot(loss_figure(metric_history(self.folder)))

    def sample(self, num: int | None = None, **keywords: Unpack[SampleKeywords]) -> SampleSet:
        """Draw `num` samples from the newest checkpoint's averaged weights (default: 64, or 4 of
        each prompt).

        The keywords are the options of `ditlab sample`. Raises UserError without a checkpoint, and
        for options that do not fit the family.
        """
        saved = self._opened().saved()
        from ditlab.analysis.drawing import draw
        from ditlab.analysis.sample_options import SampleOptions

        with computing_beside_others(self.warn):
            return draw(saved, SampleOptions.of(num, keywords))

    def evaluate(
        self,
        *,
        quality: int | None = None,
        rows: int | None = None,
        batch: int | None = None,
        overrides: Sequence[str] = (),
        data: str | Path | None = None,
    ) -> CheckpointEvaluation:
        """Evaluate the newest checkpoint as training does, and over all held-out samples; add the
        result to the run.

        `quality` samples are drawn and measured; None: as many as in training, 0: none. With `rows`
        (only the first held-out samples), `data` (`train`, or a store by folder or name, in place
        of the held-out samples) or `overrides` (`sampling.KEY=VALUE` and
        `evaluation.scorer.KEY=VALUE`: quality under other settings; `encoders.KEY=PLACE`) nothing
        is added to the run. `batch` is the number of samples at once; None: the run's. Raises
        UserError where nothing is held out, or quality cannot be measured.
        """
        if rows is None and data is None and not overrides:
            self.home.check_place()
        self.wait_as_in_training()
        saved = self._opened().saved()
        from ditlab.analysis.saved_evaluation import evaluate_run

        return evaluate_run(
            saved, quality, rows, batch, overrides, None if data is None else str(data)
        )

    def figures(self, seed: int = 0) -> FigureSet:
        """Figures of the run's family from its trained weights; `seed` is that of the samples in
        them.
        """
        saved = self._opened().saved()
        from ditlab.analysis.figures import run_figures

        return run_figures(saved, seed)

    def export(
        self,
        folder: str | Path,
        *,
        averaged: bool = True,
        ema: str | float | None = None,
        format: str = "ditlab",
    ) -> ExportedWeights:
        """Write the weights as safetensors, with the spec that rebuilds the network and its
        tokeniser if it has one.

        `format="torch"` adds a file of code that samples without DiTLab; `"diffusers"` writes a
        pipeline of diffusers. Both need a folder without content. `"safetensors"` is another name
        of `"ditlab"`.

        `averaged`: the moving average where there is one, else the weights themselves; `ema`: an
        average of this relative length, rebuilt. Adapters (`training.lora`) are merged into the
        weights; `format="peft"` writes them alone, as peft does. Raises UserError where the run has
        no checkpoint yet, its family has no such export, or the disk refuses.
        """
        saved = self._opened().saved()
        from ditlab.analysis.averages import export_saved

        files = export_saved(saved, Path(folder), averaged, ema, format)
        return ExportedWeights(self.id, saved.step, Path(folder), files)

    def describe(self) -> RunDescription:
        """The run's status, spec, last metrics, checkpoints and sizes, and what MLflow has not
        received.
        """
        from ditlab.runs.description import describe_run

        return describe_run(self.home, FoundRun(self.folder, read_record(self.folder)))

    def time(self) -> TimeSummary | None:
        """Where the time of the run's logged steps went, by phase; None where it has logged no
        times.
        """
        with suppress(OSError):
            return run_time(read_content(self.folder.journal))
        return None

    def events(self) -> list[RunEvent]:
        """Starts, evaluations, checkpoints that are kept, failures and ends, by time."""
        from ditlab.runs.events import EventReader

        return EventReader(self.folder).read_all()

    def report(self, path: str | Path | None = None) -> Path:
        """Write the run's page, one HTML file, to `path` (None: `report.html` in its folder);
        return the file's path. Needs no torch and no network. Raises UserError where the disk
        refuses."""
        from ditlab.api.pages import write_report

        return write_report(self.home, self.folder, path)

    _repr_html_ = partialmethod(display_html, "run")

    def _history(self, names: Sequence[str]) -> dict[str, Series]:
        """The named metrics from the journal; without names, all. Raises UserError for an unknown
        name.
        """
        history = metric_history(self.folder)
        for name in names:
            if name not in history:
                raise UserError(
                    f"run {self.id} has no metric {name!r}; {nearest(name, list(history))}"
                )
        return {name: history[name] for name in names or history}

    def wait_as_in_training(self) -> None:
        """Let threads sleep at barriers where the run's own number is more than the free cores;
        before torch loads.
        """
        if not self.spec.resources.gpus_per_worker:
            sleep_at_barriers(recorded_threads(self.folder) or 1)

    def _opened(self) -> OpenedRun:
        from ditlab.analysis.opened_run import OpenedRun

        return OpenedRun(
            self.home, self.folder, self.record, self.spec, self.warn, self.on_progress, self.anyway
        )


def open_run(
    name: str,
    *,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
    anyway: bool = False,
) -> Run:
    """Open the run that `name` names: an id, a unique prefix of one, or a run's name (its newest
    run).

    `warn` receives warnings and remarks (None: the logger `ditlab`), `on_progress` (task, done,
    total or None, unit) of work with the run; with `anyway` that goes on where the data are other
    than those that it was trained on. Raises UserError for an unknown run, for a prefix of several,
    and for a sweep.
    """
    home = Home.from_environment()
    found = find_training_run(home, name)
    warn = warn or _log.warning
    if found.note:
        warn(found.note)
    return Run(found.folder, found.record, home, warn, on_progress, anyway)


def find_runs(
    *, name: str | None = None, status: str | None = None, family: str | None = None
) -> FoundRuns:
    """Training runs in DITLAB_HOME, the newest first: all, or those of a name, status or family.
    Sweeps are not listed; their trials are. A notebook shows the list as a table."""
    home = Home.from_environment()
    wanted = (("name", name), ("status", status), ("family", family))
    return FoundRuns(
        Run(home.run(record.run_id), record, home)
        for record in list_runs(home)
        if not record.trials and all(value in (None, getattr(record, key)) for key, value in wanted)
    )


class FoundRuns(list[Run]):
    """Runs, the newest first: a list, and a table in a notebook."""

    _repr_html_ = partialmethod(display_html, "runs")
