"""From a sweep's file to trials that may start: every check, the sweep's folder, what an earlier session left."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from denoisers.parameter_counts import count_parameters
from ditlab.cluster.capacity import CpuShare, Node
from ditlab.cluster.launch import is_connected
from ditlab.data.splits import open_data
from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.inputs.model_inputs import check_inputs
from ditlab.quality import check_quality
from ditlab.runs.lifecycle import home_write_error
from ditlab.runs.locks import lock_run
from ditlab.runs.preflight import check_builds, check_devices, check_network, check_storage
from ditlab.spec.experiment import Experiment
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.spec.sweep.space import check_sweep, differences, enumerate_trials, written
from ditlab.spec.sweep.spec import Sweep
from ditlab.storage.files import write_durably
from ditlab.sweeps.concurrency import find_room
from ditlab.sweeps.folder import SweepFolder, record_of
from ditlab.sweeps.portable import portable_sweep, typical_values
from ditlab.sweeps.trials import PastTrial, PlannedTrial, trial_experiment
from ditlab.tracking.journal.history import final_metrics
from ditlab.tracking.records import create_run, find_run, list_runs
from ditlab.training.metric_names import metric_names
from ditlab.training.plan import plan_run

# The sections of a spec that the checks of a run look at.
CHECKED = ("model", "objective", "sampling", "data", "encoders", "batch", "training", "schedule", "resources",
           "checkpoint", "evaluation")  # fmt: skip


@dataclass(frozen=True)
class CheckedTrial:
    """What is known of a trial before it starts."""

    trial: PlannedTrial
    experiment: Experiment
    num_parameters: int
    total_steps: int


@dataclass
class ReadySweep:
    """A sweep that has passed every check and may go."""

    sweep: Sweep
    home: Home
    tracking_uri: str
    experiment: Experiment
    """The base with what is fixed; for Optuna, which has no trials yet, all that is known."""
    checked: list[CheckedTrial]
    """Those that can be enumerated."""
    total_steps: int
    """Of the longest trial."""
    share: CpuShare
    concurrent: int
    folder: SweepFolder | None = None
    past: list[PastTrial] = field(default_factory=list)
    """What the ledger holds, by number."""
    lines: list[str] = field(default_factory=list)

    @property
    def num_trials(self) -> int:
        return len(self.checked) or self.sweep.trials or 0

    @property
    def num_remaining(self) -> int:
        """Trials that are still to run, or to go on."""
        return self.num_trials - sum(one.has_ended for one in self.past)


def ready_sweep(
    sweep: Sweep, source: str, nodes: Sequence[Node], *, remote: bool, begun: Sweep | None = None
) -> ReadySweep:
    """Checks everything that can be checked before a process is started. Raises UserError; leaves nothing behind.

    `nodes` is what the machine or cluster has; `begun` is the sweep itself where it goes on.
    """
    home = Home.from_environment()
    check_sweep(sweep, source)
    sweep, tracking_uri = portable_sweep(sweep, home, begun)
    base = trial_experiment(sweep, PlannedTrial(0, "", typical_values(sweep)))
    notes: list[str] = []
    if remote and is_connected():
        from ditlab.cluster.nodes.survey import check_nodes

        check_nodes(base, notes.append, everywhere=True)  # any node may lead a trial
    checks = _Checks(home, remote)
    checked = [_checked(sweep, number, each, checks) for number, each in enumerate(enumerate_trials(sweep) or [])]
    longest = max([checks.run(base)[1], *(each.total_steps for each in checked)])
    _check_metrics(sweep, base, home)
    share, concurrent, note = find_room(sweep, base, nodes, len(checked) or sweep.trials or 1)
    ready = ReadySweep(sweep, home, tracking_uri, base, checked, longest, share, concurrent)
    ready.lines += [_describe(ready), *([note] if note else []), *notes]
    return ready


def create_sweep(ready: ReadySweep) -> None:
    """Makes the sweep's folder, with the plan of what can be enumerated. Raises UserError where the disk refuses."""
    sweep, home = ready.sweep, ready.home
    home.ensure()
    folder = None
    try:
        folder = create_run(
            home, sweep.name, family=ready.experiment.model.family, spec_hash="", total_steps=ready.num_trials,
            trials=ready.num_trials, tracking_uri=ready.tracking_uri if ready.experiment.tracking.uri else "",
        )  # fmt: skip
        ready.folder = SweepFolder(folder)
        write_durably(ready.folder.spec, dump_yaml(sweep.to_dict()).encode())
        _plan_rest(ready)
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise home_write_error(home, error) from error
    ready.lines.append(f"sweep {folder.run_id}: {ready.num_trials} trials, {ready.concurrent} at once")


def resumed_sweep(home: Home, sweep_id: str, given: Sweep | None) -> tuple[SweepFolder, Sweep, str]:
    """An earlier sweep, as it was or with what may change, and a note where several have its name.

    Raises UserError for what may not change, saying what has.
    """
    found = find_run(home, sweep_id)
    folder = SweepFolder(found.folder)
    stored = folder.sweep()
    if given is None:
        return folder, stored, found.note
    check_sweep(given, sweep_id)
    given, _ = portable_sweep(given, home, stored)
    if changed := differences(stored, given):
        raise UserError(
            f"sweep {found.folder.run_id} was started as another one: {'; '.join(changed)}. Resume it with its own "
            "file, or without one, or start a new sweep without --resume."
        )
    return folder, given, found.note


def unfinished_sweep(home: Home, given: Sweep) -> str | None:
    """The id of the newest sweep that this one can go on with: unfinished, of its name and its fields."""
    for record in list_runs(home):
        if record.trials and record.name == given.name and record.status != "finished":
            stored = SweepFolder(home.run(record.run_id)).sweep()
            if not differences(stored, portable_sweep(given, home, stored)[0]):
                return record.run_id
    return None


def look_back(ready: ReadySweep, folder: SweepFolder) -> None:
    """Finds out what an earlier session left; changes nothing."""
    ready.folder = folder
    ready.past = [_past(ready, trial) for trial in folder.trials()]


def take_up(ready: ReadySweep, folder: SweepFolder) -> None:
    """Goes on with an earlier sweep's trials. Raises UserError where another process runs it."""
    with lock_run(folder.folder):
        _take_up(ready, folder)


def _take_up(ready: ReadySweep, folder: SweepFolder) -> None:
    look_back(ready, folder)
    for one, checked in zip(ready.past, ready.checked, strict=False):
        assert one.trial.values == checked.trial.values, f"trial {one.trial.number} is another one"
    try:
        write_durably(folder.spec, dump_yaml(ready.sweep.to_dict()).encode())
        _plan_rest(ready)
    except OSError as error:
        raise home_write_error(ready.home, error) from error
    done = sum(one.has_ended for one in ready.past)
    ready.lines.append(f"sweep {folder.folder.run_id}: going on, {done} of {ready.num_trials} trials are done")


def _plan_rest(ready: ReadySweep) -> None:
    """Writes down the enumerated trials that the ledger does not have yet."""
    assert ready.folder
    for number in range(len(ready.past), len(ready.checked)):
        values = ready.checked[number].trial.values
        trial = ready.folder.plan(ready.home, number, values)
        ready.past.append(PastTrial(trial, "waiting", 0, ()))
    for place, one in enumerate(ready.past[: len(ready.checked)]):
        checked = ready.checked[place]
        ready.checked[place] = CheckedTrial(one.trial, checked.experiment, checked.num_parameters, checked.total_steps)


def _past(ready: ReadySweep, trial: PlannedTrial) -> PastTrial:
    record = record_of(ready.home, trial.run_id)
    if record is None:
        return PastTrial(trial, "waiting", 0, ())
    metrics = final_metrics(ready.home.run(trial.run_id))
    wanted = ready.sweep.metrics
    values = tuple(metrics[name] for name in wanted) if all(name in metrics for name in wanted) else ()
    return PastTrial(trial, record.status, record.step, values)


def _checked(sweep: Sweep, number: int, values: dict[str, Any], checks: "_Checks") -> CheckedTrial:
    trial = PlannedTrial(number, "", values)
    experiment = trial_experiment(sweep, trial)
    try:
        num, steps = checks.run(experiment)
    except UserError as error:
        raise UserError(f"trial {number} ({written(values)}): {error}") from None
    return CheckedTrial(trial, experiment, num, steps)


class _Checks:
    """What each run is checked for; what was checked of one trial is not checked of another."""

    def __init__(self, home: Home, remote: bool) -> None:
        self._home, self._remote = home, remote
        self._known: dict[str, tuple[int, int]] = {}

    def run(self, experiment: Experiment) -> tuple[int, int]:
        """(parameters, steps) of a run that could start. Raises UserError for one that could not."""
        spec = experiment.to_dict()
        key = json.dumps([spec[part] for part in CHECKED], sort_keys=True)
        if key not in self._known:
            self._known[key] = self._check(experiment)
        return self._known[key]

    def _check(self, experiment: Experiment) -> tuple[int, int]:
        check_devices(experiment, False, self._remote)
        if not self._remote:
            check_network(experiment)
        check_builds(experiment)
        check_storage(experiment)
        data = open_data(experiment.data, self._home)
        check_inputs(experiment, data, self._home)
        check_quality(experiment, data)
        counts = count_parameters(experiment.model, experiment.objective)
        return counts.total, plan_run(experiment, data).total_steps


def _check_metrics(sweep: Sweep, experiment: Experiment, home: Home) -> None:
    """Raises UserError for a metric that no trial would report."""
    known = metric_names(experiment, open_data(experiment.data, home))
    for name in sweep.metrics:
        if name not in known:
            raise UserError(f"metric={name} is reported by no trial of this sweep; {nearest(name, known)}")


def local_nodes() -> list[Node]:
    """This machine."""
    return [{"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}]


def cluster_nodes() -> list[Node]:
    """The nodes of the cluster that this process is connected to, with those that its autoscaler may add."""
    from ditlab.cluster.autoscaling import possible_growth
    from ditlab.cluster.nodes.membership import alive_nodes

    nodes = [node["Resources"] for node in alive_nodes()]
    return [*nodes, *possible_growth(nodes).nodes()]


def _describe(ready: ReadySweep) -> str:
    sweep, resources = ready.sweep, ready.experiment.resources
    threads, gpus = ready.share.threads, resources.gpus_per_worker
    where = f"{gpus:g} GPU" if gpus else f"{threads} CPU thread{'s' if threads > 1 else ''}"
    each = f"{resources.max_workers} worker{'s' if resources.max_workers > 1 else ''} with {where} a trial"
    parts = [
        f"{len(sweep.space)} ax{'e' if len(sweep.space) > 1 else 'i'}s",
        f"{sweep.search.kind} search",
        f"scheduler {sweep.scheduler.kind}",
        each,
    ]
    return f"{sweep.name}: {ready.experiment.model.family}, {', '.join(parts)}"
