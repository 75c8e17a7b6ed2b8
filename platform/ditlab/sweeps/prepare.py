"""Preparation of a sweep: every check that needs no worker process, for each trial that is known beforehand."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ditlab.cluster.capacity import Node
from ditlab.cluster.session import is_connected
from ditlab.data.splits import open_data
from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.inputs.checks import check_inputs
from ditlab.quality import check_quality
from ditlab.runs.checks import check_devices, check_network, check_storage, count_and_build
from ditlab.runs.forks import check_start
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep.space import check_sweep, enumerate_trials, written
from ditlab.spec.sweep.spec import Sweep
from ditlab.sweeps.concurrency import Concurrency, plan_concurrency
from ditlab.sweeps.portable import portable_sweep, typical_values
from ditlab.sweeps.trials import PlannedTrial, trial_experiment
from ditlab.tracking.relocation import check_place
from ditlab.training.metrics import metric_names, pace_names
from ditlab.training.plan import plan_run

# Sections of a spec that the checks depend on.
CHECKED_SECTIONS = ("model", "objective", "sampling", "data", "encoders", "batch", "training", "schedule", "resources",
                    "checkpoint", "evaluation")  # fmt: skip

# Those that a fork's start depends on, besides its length and the kind of its optimiser.
STARTED_SECTIONS = ("start", "model", "objective", "training")


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
    check_place(home)
    sweep, tracking_uri = portable_sweep(sweep, home, stored)
    base = trial_experiment(sweep, PlannedTrial(0, "", typical_values(sweep)))
    messages: list[str] = []
    if remote and is_connected():
        from ditlab.cluster.nodes.survey import check_nodes  # imports ray

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
        spec = experiment.to_dict()
        parts = [total_steps, experiment.optimizer.kind, *(spec[section] for section in STARTED_SECTIONS)]
        if (key := json.dumps(parts, sort_keys=True)) not in self._started:
            check_start(experiment, self._home, total_steps)
            self._started.add(key)

    def _check(self, experiment: Experiment) -> tuple[int, int]:
        check_devices(experiment, False, self._remote)
        if not self._remote:
            check_network(experiment)
        counts = count_and_build(experiment)
        check_storage(experiment)
        data = open_data(experiment.data, self._home)
        check_inputs(experiment, data, self._home)
        check_quality(experiment, data)
        return counts.total, plan_run(experiment, data).total_steps


def _check_metrics(sweep: Sweep, experiment: Experiment, home: Home) -> None:
    """Raises UserError for a metric that no trial would report."""
    known = [*metric_names(experiment, open_data(experiment.data, home)), *pace_names(experiment)]
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
