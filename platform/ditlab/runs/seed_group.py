"""Group of runs that differ in the seed alone (`ditlab train --seeds`): its folder, its runs, and
its tracked run.

A run of its own, without training, stands for the group: its record names the group, its tracked
run holds mean and interval of each metric over seeds, and MLflow nests the group's runs below it.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import NamedTuple

from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.intervals import Interval, paired_interval
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import encode_recorded
from ditlab.storage.files import write_durably
from ditlab.tracking.access import launch_address
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import MAIN_TAG, final_values, metric_history
from ditlab.tracking.journal import main_metric
from ditlab.tracking.mlflow_runs import GROUP_TAG, PARENT_TAG, SEED_TAG
from ditlab.tracking.names import flatten
from ditlab.tracking.records import (
    RunRecord,
    create_run,
    find_run,
    find_unfinished,
    list_runs,
    update_record,
)
from ditlab.tracking.review import STATUS_TAG
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, EndStatus, RunTracker

OVER_SEEDS = (
    "train/loss",
    "eval/",
    "held_out/",
    "quality/",
    "assessed/",
    "perf/",
    "train/samples_per_second",
)
"""Metrics that a group has over its seeds."""


class GroupPlace(NamedTuple):
    """Place of a run in its group."""

    group: str
    """Id of the group."""
    number: int
    """Number of the run, from 0."""
    seed: int

    def tags(self) -> dict[str, str]:
        """The tags of the tracked run."""
        return {
            PARENT_TAG: self.group,
            "ditlab.trial": str(self.number),
            GROUP_TAG: self.group,
            SEED_TAG: str(self.seed),
        }


@dataclass(frozen=True)
class SeedGroup:
    """A group that has a folder."""

    home: Home
    folder: RunFolder
    experiment: Experiment
    """The experiment under the first seed."""
    num_seeds: int
    note: str
    """Line about the group that `--resume` has found; else empty."""

    @property
    def seeds(self) -> list[int]:
        """The seeds, the experiment's first."""
        return [self.experiment.seed + number for number in range(self.num_seeds)]

    def place(self, number: int) -> GroupPlace:
        """Return the place of a run by its number."""
        return GroupPlace(self.folder.run_id, number, self.seeds[number])

    def member(self, number: int) -> Experiment:
        """Return the experiment of a run by its number: another seed, and a name with it."""
        seed = self.seeds[number]
        return self.experiment.replace_all(
            {"seed": seed, "name": f"{self.experiment.name[:80]}-seed{seed}"}
        )

    def begun(self) -> dict[int, RunRecord]:
        """Return the records of runs that have begun, by number."""
        records = [record for record in list_runs(self.home) if record.parent == self.folder.run_id]
        return {record.trial: record for record in reversed(records)}


def open_group(experiment: Experiment, num_seeds: int, resume: str | None) -> SeedGroup:
    """Make the folder of a new group, or find the one to go on with (id, name or `auto`), which may
    have more seeds.

    Raises UserError for a group of another experiment or of more seeds, and where DITLAB_HOME
    cannot be written.
    """
    home = Home.from_environment()
    spec_hash = experiment.content_hash()
    note = ""
    home.check_place()
    last = experiment.seed + num_seeds - 1
    if last >= 2**63:
        raise UserError(
            f"--seeds {num_seeds} counts up to seed {last}, and seeds end at {2**63 - 1}; "
            "lower seed."
        )
    if resume == "auto":
        unfinished = find_unfinished(home, experiment.name, spec_hash, is_group=True)
        resume = None
        note = "--resume auto: no unfinished group of this spec"
        if unfinished:
            resume = unfinished.run_id
            note = f"--resume auto: group {resume}"
    if resume is None:
        return SeedGroup(home, _create(experiment, num_seeds, home), experiment, num_seeds, note)
    found = find_run(home, resume)
    record = found.record
    if not record.is_group:
        raise UserError(
            f"--seeds {num_seeds} goes on with a group, and run {record.run_id} is none; leave "
            "out --seeds or --resume."
        )
    if record.spec_hash != spec_hash:
        raise UserError(
            f"group {record.run_id} was started as another experiment (spec hash "
            f"{record.spec_hash}, now {spec_hash}); resume it with its own spec, or start a "
            "new group without --resume."
        )
    if num_seeds < record.trials:
        raise UserError(
            f"--seeds {num_seeds} is fewer than the {record.trials} of group {record.run_id}; "
            "give that many or more."
        )
    update_record(
        found.folder, status="running", message="", trials=num_seeds, total_steps=num_seeds
    )
    return SeedGroup(home, found.folder, experiment, num_seeds, note)


def _create(experiment: Experiment, num_seeds: int, home: Home) -> RunFolder:
    home.ensure()
    run_id = secrets.token_hex(4)
    while home.run(run_id).path.exists():
        run_id = secrets.token_hex(4)
    address = launch_address(experiment.tracking.uri, home)
    folder = create_run(
        home,
        experiment.name,
        family=experiment.model.family,
        spec_hash=experiment.content_hash(),
        run_id=run_id,
        total_steps=num_seeds,
        trials=num_seeds,
        group=run_id,
        tracking_uri=address or "",
    )
    write_durably(folder.spec, encode_recorded(experiment.to_dict()))
    return folder


class GroupRun:
    """Tracked run of a group: mean and interval of each metric over the seeds that have finished.

    Use as a context manager, whose end waits a bounded time for MLflow.
    """

    def __init__(self, group: SeedGroup) -> None:
        self._group = group
        self._tracker = RunTracker(
            group.folder,
            launch_address(group.experiment.tracking.uri, group.home),
            group.home,
            budget=None,
        )
        self._status: EndStatus = "failed"
        self._finished: dict[int, dict[str, float]] = {}
        """Last values of the finished runs' metrics, by seed."""

    def __enter__(self) -> GroupRun:
        experiment = self._group.experiment
        parameters = {
            **flatten(experiment.to_dict()),
            "seeds": ", ".join(map(str, self._group.seeds)),
        }
        tags = {
            **source_tags(),
            "ditlab.kind": "group",
            STATUS_TAG: "running",
            GROUP_TAG: self._group.folder.run_id,
        }
        self._tracker.start(
            experiment.name,
            experiment.tracking.experiment,
            experiment.model.family,
            parameters,
            tags,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._status = "interrupted"
        self._tracker.set_tags({STATUS_TAG: self._status})
        update_record(self._group.folder, status=self._status, step=len(self._finished))
        self._tracker.end(self._status)
        timeout = CATCH_UP_TIMEOUT
        if self._status == "interrupted":
            timeout = 0.0
        self._tracker.close(timeout)

    def finished(self, seed: int, folder: RunFolder) -> None:
        """Take a finished run in, and log mean and interval over the seeds so far, at the number of
        seeds.
        """
        values = final_values(metric_history(folder))
        self._finished[seed] = {
            name: value for name, value in values.items() if name.startswith(OVER_SEEDS)
        }
        found = self.intervals()
        num = len(self._finished)
        metrics = {name: interval.mean for name, interval in found.items()}
        if num > 1:
            metrics |= {f"low/{name}": interval.low for name, interval in found.items()}
            metrics |= {f"high/{name}": interval.high for name, interval in found.items()}
        self._tracker.journal.log_metrics(num, metrics)
        main = main_metric(folder)
        if main:
            self._tracker.set_tags({MAIN_TAG: main})

    def intervals(self) -> dict[str, Interval]:
        """Interval of each metric's mean over the seeds that have finished, of metrics that are
        finite in all runs.
        """
        runs = list(self._finished.values())
        names = [
            name
            for name in next(iter(runs), {})
            if all(math.isfinite(values.get(name, math.nan)) for values in runs)
        ]
        return {name: paired_interval([run[name] for run in runs]) for name in names}

    def ended(self, status: EndStatus) -> None:
        """Note how the group ends."""
        self._status = status
