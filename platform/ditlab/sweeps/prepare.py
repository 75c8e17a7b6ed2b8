"""Preparation of a sweep: every check that needs no worker process, for each trial that is known beforehand.

A portable sweep has absolute paths and a tracking address, as workers run in other working directories. Its concurrency
is the number of trials that train at once, and the cores of each of their workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ditlab.cluster.capacity import CpuShare, Node, check_capacity, cpu_share, runs_that_fit
from ditlab.cluster.session import is_connected
from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.inputs.model_inputs import check_inputs
from ditlab.quality import check_quality
from ditlab.runs.forks import check_start
from ditlab.runs.launch import Launch, build_model
from ditlab.runs.prepare import absolute_paths, check_devices, check_network, check_storage
from ditlab.spec.experiment import Experiment
from ditlab.spec.overrides import nested, value_at
from ditlab.spec.resources import Resources
from ditlab.spec.sweep import Pbt, Sweep
from ditlab.spec.sweep_axes import Axis, Choice, Grid
from ditlab.spec.sweep_space import check_sweep, draw_values, enumerate_trials, experiment_for, written
from ditlab.sweeps.folder import PlannedTrial, trial_experiment
from ditlab.tracking.access import launch_address, resolve_tracking_uri
from ditlab.training.metrics import metric_names, pace_names

# Sections of a spec that the checks depend on.
CHECKED_SECTIONS = ("model", "objective", "sampling", "data", "encoders", "batch", "training", "schedule", "resources",
                    "checkpoint", "evaluation")  # fmt: skip
# Those that a fork's start depends on, besides its length and the kind of its optimiser.
STARTED_SECTIONS = ("start", "model", "objective", "training")


def portable_sweep(sweep: Sweep, home: Home, stored: Sweep | None = None) -> tuple[Sweep, str]:
    """Return the sweep with absolute paths, and the resolved tracking address.

    A tracking address of null becomes MLFLOW_TRACKING_URI, or, for a resumed sweep, the address in its `stored` spec,
    whatever the environment says now. Without either it stays null, so that DITLAB_HOME can be moved. Raises UserError
    for an address that holds a password.
    """
    uri = experiment_for(sweep, typical_values(sweep)).tracking.uri
    if uri is None and stored is not None:
        uri = stored.fixed.get("tracking.uri")
    address = launch_address(uri, home, environment=stored is None)
    fixed = {path: _absolute(path, value, home) for path, value in sweep.fixed.items()}
    if address is not None:
        fixed["tracking.uri"] = address
    space = {path: _absolute_axis(path, axis, home) for path, axis in sweep.space.items()}
    changed = {"base": absolute_paths(sweep.base, home), "fixed": fixed, "space": space}
    return sweep.model_copy(update=changed), resolve_tracking_uri(address, home)


def typical_values(sweep: Sweep) -> dict[str, Any]:
    """Choose values that make an experiment, for checks of the sweep as a whole.

    These are the first trial's where trials can be enumerated; else none, or the first value of each axis.
    """
    if values := enumerate_trials(sweep):
        return values[0]
    with suppress(UserError):
        experiment_for(sweep, {})
        return {}
    return draw_values(sweep.space, lambda _, axis: axis.ends()[0])


def _absolute(path: str, value: Any, home: Home) -> Any:
    """Make the paths in the value of a field or of a whole section absolute."""
    keys = path.split(".")
    return value_at(absolute_paths(nested(keys, value), home), keys)


def _absolute_axis(path: str, axis: Axis, home: Home) -> Axis:
    if not isinstance(axis, Choice | Grid):
        return axis
    return axis.model_copy(update={"values": tuple(_absolute(path, value, home) for value in axis.values)})


@dataclass(frozen=True)
class Concurrency:
    """Division of the machine or cluster among trials."""

    num_trials: int
    """Trials that train at once."""
    share: CpuShare
    """Cores of each worker."""
    note: str = ""
    """Message where fewer trials fit than the sweep's `concurrent`; else empty."""


def plan_concurrency(sweep: Sweep, resources: Resources, nodes: Sequence[Node], num_trials: int) -> Concurrency:
    """Choose how many of `num_trials` trials train at once on `nodes`.

    Raises UserError where not even one trial fits, or less than the whole population of population-based training.
    """
    is_population = isinstance(sweep.scheduler, Pbt)
    wanted = num_trials if is_population else sweep.concurrent or _one_core_a_worker(resources, nodes)
    wanted = min(wanted, num_trials)
    check_capacity(resources, nodes, cpu_share(resources, nodes, wanted))
    fit = next(num for num in range(wanted, 0, -1) if num == 1 or _fits(resources, nodes, num))
    share = cpu_share(resources, nodes, fit)
    if fit == wanted:
        return Concurrency(fit, share)
    if is_population:
        raise UserError(
            f"scheduler.kind=pbt trains all of trials={num_trials} at once, and {fit} of them fit; lower trials, or "
            "resources.cpus_per_worker or resources.gpus_per_worker under `fixed`."
        )
    note = f"concurrent={sweep.concurrent} trials do not fit at once: {fit} of them do." if sweep.concurrent else ""
    return Concurrency(fit, share, note)


def local_nodes() -> list[Node]:
    """This machine as the only node."""
    return [{"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}]


def cluster_nodes() -> list[Node]:
    """Nodes of the cluster that this process is connected to, and those that its autoscaler may add."""
    # Both import Ray, which a dry run on one machine does not need.
    from ditlab.cluster.autoscaling import possible_growth
    from ditlab.cluster.nodes import alive_nodes

    nodes = [node["Resources"] for node in alive_nodes()]
    return [*nodes, *possible_growth(nodes).nodes()]


def _one_core_a_worker(resources: Resources, nodes: Sequence[Node]) -> int:
    """Count the trials that fit with one core a worker, or with the spec's `cpus_per_worker`."""
    alone = cpu_share(resources, nodes) if resources.cpus_per_worker else CpuShare(1, 1.0)
    return max(1, runs_that_fit(resources, alone, nodes))


def _fits(resources: Resources, nodes: Sequence[Node], num: int) -> bool:
    return runs_that_fit(resources, cpu_share(resources, nodes, num), nodes) >= num


@dataclass(frozen=True)
class CheckedTrial:
    """A trial that can start."""

    number: int
    values: dict[str, Any]
    """Value by axis path."""
    experiment: Experiment
    num_parameters: int
    total_steps: int


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep that has passed every check, and of which nothing exists on the disk yet."""

    sweep: Sweep
    """The sweep with absolute paths and the tracking address of this launch."""
    home: Home
    tracking_uri: str
    """Resolved address of the tracked runs."""
    base: Experiment
    """The base with `fixed` and typical values of the axes."""
    trials: list[CheckedTrial]
    """Trials that can be enumerated; empty for a search that proposes trials as it goes."""
    total_steps: int
    """Steps of the longest trial."""
    concurrency: Concurrency
    notes: list[str]
    """Lines that describe the sweep, and messages of the checks."""

    @property
    def num_trials(self) -> int:
        """Number of trials of the whole sweep."""
        return len(self.trials) or self.sweep.trials or 0


def prepare_sweep(
    sweep: Sweep, source: str, nodes: Sequence[Node], *, remote: bool, stored: Sweep | None = None
) -> PreparedSweep:
    """Check everything that can be checked before a process is started.

    Args:
        sweep: the validated sweep.
        source: name of the sweep in error messages, such as its file.
        nodes: what the machine or the cluster has.
        remote: True if trials run on a cluster, whose nodes are checked apart.
        stored: the spec of the sweep that is resumed, as it was last stored; None for a new one.

    Raises:
        UserError: something is wrong. Nothing of the sweep is left behind.
    """
    home = Home.from_environment()
    check_sweep(sweep, source)
    home.check_place()
    sweep, tracking_uri = portable_sweep(sweep, home, stored)
    base = trial_experiment(sweep, PlannedTrial(0, "", typical_values(sweep)))
    messages: list[str] = []
    if remote and is_connected():
        from ditlab.cluster.survey import check_nodes  # imports ray

        check_nodes(base, messages.append, everywhere=True)  # any node may lead a trial
    checks = _TrialChecks(home, remote)
    trials = [checks.trial(sweep, number, values) for number, values in enumerate(enumerate_trials(sweep) or [])]
    total_steps = max([checks.run(base)[1], *(trial.total_steps for trial in trials)])
    _check_metrics(sweep, base, home)
    concurrency = plan_concurrency(sweep, base.resources, nodes, len(trials) or sweep.trials or 1)
    notes = [_describe(sweep, base, concurrency), *filter(None, [concurrency.note]), *messages]
    return PreparedSweep(sweep, home, tracking_uri, base, trials, total_steps, concurrency, notes)


class _TrialChecks:
    """Checks of the trials, each done once for all trials that agree in the sections that it depends on."""

    def __init__(self, home: Home, remote: bool) -> None:
        self._home, self._remote = home, remote
        self._results: dict[str, tuple[int, int]] = {}
        self._started: set[str] = set()

    def trial(self, sweep: Sweep, number: int, values: dict[str, Any]) -> CheckedTrial:
        """Check one trial. Raises UserError that names it."""
        experiment = trial_experiment(sweep, PlannedTrial(number, "", values))
        try:
            num_parameters, total_steps = self.run(experiment)
        except UserError as error:
            raise UserError(f"trial {number} ({written(values)}): {error}") from None
        return CheckedTrial(number, values, experiment, num_parameters, total_steps)

    def run(self, experiment: Experiment) -> tuple[int, int]:
        """Return (parameters, steps) of an experiment. Raises UserError if it could not start."""
        spec = experiment.to_dict()
        key = json.dumps([spec[section] for section in CHECKED_SECTIONS], sort_keys=True)
        if key not in self._results:
            self._results[key] = self._check(experiment)
        self._check_start(experiment, self._results[key][1])
        return self._results[key]

    def _check_start(self, experiment: Experiment, total_steps: int) -> None:
        """Check each kind of fork against its parent's checkpoint once."""
        if experiment.start is None:
            return
        spec = experiment.to_dict()
        parts = [total_steps, experiment.optimizer.kind, *(spec[section] for section in STARTED_SECTIONS)]
        if (key := json.dumps(parts, sort_keys=True)) not in self._started:
            check_start(experiment, build_model(experiment), self._home, total_steps)
            self._started.add(key)

    def _check(self, experiment: Experiment) -> tuple[int, int]:
        check_devices(experiment, False, self._remote)
        if not self._remote:
            check_network(experiment)
        launch = Launch(experiment, self._home)
        num_parameters = launch.model.counts.total
        check_storage(experiment)
        check_inputs(experiment, launch.data, self._home)
        if experiment.evaluation.quality:
            check_quality(experiment, launch.data)
        return num_parameters, launch.plan.total_steps


def _check_metrics(sweep: Sweep, experiment: Experiment, home: Home) -> None:
    """Raises UserError for a metric that no trial would report."""
    launch = Launch(experiment, home)
    known = [*metric_names(experiment, launch.data, launch.model.objective), *pace_names(experiment)]
    for name in sweep.metrics:
        if name not in known:
            raise UserError(f"metric={name} is reported by no trial of this sweep; {nearest(name, known)}")


def _describe(sweep: Sweep, base: Experiment, concurrency: Concurrency) -> str:
    """One line about a sweep: its axes, search, scheduler, and the workers of a trial."""
    threads, gpus = concurrency.share.threads, base.resources.gpus_per_worker
    where = f"{gpus:g} GPU" if gpus else f"{threads} CPU thread{'s' if threads > 1 else ''}"
    workers = base.resources.max_workers
    parts = [
        f"{len(sweep.space)} ax{'e' if len(sweep.space) > 1 else 'i'}s",
        f"{sweep.search.kind} search",
        f"scheduler {sweep.scheduler.kind}",
        f"{workers} worker{'s' if workers > 1 else ''} with {where} a trial",
    ]
    return f"{sweep.name}: {base.model.family}, {', '.join(parts)}"
