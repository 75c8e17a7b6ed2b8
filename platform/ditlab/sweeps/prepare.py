"""Preparation of a sweep: every check that needs no worker process, for each trial that is known
beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from ditlab.cluster.capacity import (
    CpuShare,
    Node,
    check_capacity,
    cpu_share,
    has_autoscaler,
    nodes_for_workers,
    runs_that_fit,
)
from ditlab.cluster.session import is_connected
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.quality.measurement import held_out_measurement, quality_measurement
from ditlab.receipts.records import ROUNDING, SHOWN, Measurement, concerns
from ditlab.reports.sweep_records import Trial
from ditlab.runs.budget import check_home_budget
from ditlab.runs.cores import allowed_cores, worker_threads
from ditlab.runs.forks import check_start
from ditlab.runs.launch import Launch, build_model, weights_of
from ditlab.runs.prepare import absolute_paths, check_parts
from ditlab.spec.experiment import Experiment
from ditlab.spec.overrides import nested
from ditlab.spec.plugins import check_sections
from ditlab.spec.resources import Resources
from ditlab.spec.sweep import NoScheduler, OptunaSearch, Pbt, Sweep
from ditlab.spec.sweep_axes import Choice, Grid
from ditlab.spec.sweep_space import (
    check_sweep,
    enumerate_trials,
    experiment_for,
    typical_values,
    unshared_axes,
    values_with,
    written,
)
from ditlab.spec.values import value_at
from ditlab.sweeps.chooser import TrialChooser, make_chooser
from ditlab.sweeps.folder import trial_experiment
from ditlab.tracking.access import launch_address, resolve_tracking_uri
from ditlab.training.metrics import metric_names, pace_names

# Sections of a spec that the checks depend on.
CHECKED_SECTIONS = (
    "model",
    "objective",
    "sampling",
    "data",
    "encoders",
    "batch",
    "training",
    "schedule",
    "resources",
    "checkpoint",
    "evaluation",
)
# Those that a fork's start depends on, besides its length and the kind of its optimiser.
MEASURED = ("eval", "quality", "train")
"""Groups of metrics that depend on what they are measured with; those of `train` on the data
alone.
"""
STARTED_SECTIONS = ("start", "model", "objective", "training")
UNPAIRED = ": their difference is taken between means over seeds, not from pairs"


def portable_sweep(sweep: Sweep, home: Home, stored: Sweep | None = None) -> tuple[Sweep, str]:
    """Return the sweep with absolute paths, as workers run in other folders, and the resolved
    tracking address.

    A tracking address of null becomes MLFLOW_TRACKING_URI, or, for a resumed sweep, the address in
    its `stored` spec, whatever the environment says now. Without either it stays null, so that
    DITLAB_HOME can be moved. Raises UserError for an address that holds a password.
    """
    uri = experiment_for(sweep, typical_values(sweep)).tracking.uri
    if uri is None and stored is not None:
        uri = stored.fixed.get("tracking.uri")
    address = launch_address(uri, home, environment=stored is None)

    def absolute(path: str, value: Any) -> Any:
        """Make the paths in the value of a field or of a whole section absolute."""
        keys = path.split(".")
        return value_at(absolute_paths(nested(keys, value), home), keys)

    fixed = {path: absolute(path, value) for path, value in sweep.fixed.items()}
    if address is not None:
        fixed["tracking.uri"] = address
    space = dict(sweep.space)
    for path, axis in sweep.space.items():
        if isinstance(axis, Choice | Grid):
            space[path] = axis.model_copy(
                update={"values": tuple(absolute(path, value) for value in axis.values)}
            )
    changed = {"base": absolute_paths(sweep.base, home), "fixed": fixed, "space": space}
    return sweep.model_copy(update=changed), resolve_tracking_uri(address, home)


@dataclass(frozen=True)
class Concurrency:
    """Division of the machine or cluster among trials."""

    num_trials: int
    """Trials that train at once."""
    share: CpuShare
    """Cores of each worker."""
    note: str = ""
    """Message where fewer trials fit than the sweep's `concurrent`; else empty."""


def plan_concurrency(
    sweep: Sweep, resources: Resources, nodes: Sequence[Node], num_trials: int, grows: bool = False
) -> Concurrency:
    """Choose how many of `num_trials` trials train at once on `nodes`; where these grow, as many as
    the sweep says.

    Raises UserError where not even one trial fits, or less than the whole population of
    population-based training.
    """
    is_population = isinstance(sweep.scheduler, Pbt)
    wanted = sweep.concurrent or 0
    if not wanted:  # as many as fit with one core a worker, or with the spec's `cpus_per_worker`
        if resources.cpus_per_worker:
            alone = cpu_share(resources, nodes)
        else:
            alone = CpuShare(1, 1.0)
        wanted = max(1, runs_that_fit(resources, alone, nodes))
    wanted = num_trials if is_population else min(wanted, num_trials)
    check_capacity(resources, nodes, cpu_share(resources, nodes, wanted), grows)
    if grows:
        return Concurrency(wanted, cpu_share(resources, nodes))
    fit = wanted
    while fit > 1 and runs_that_fit(resources, cpu_share(resources, nodes, fit), nodes) < fit:
        fit -= 1
    share = cpu_share(resources, nodes, fit)
    if fit == wanted:
        return Concurrency(fit, share)
    if is_population:
        raise UserError(
            f"scheduler.kind=pbt trains all of trials={num_trials} at once, and {fit} of them "
            "fit; lower trials, or resources.cpus_per_worker or resources.gpus_per_worker "
            "under `fixed`."
        )
    if sweep.concurrent:
        note = f"concurrent={sweep.concurrent} trials do not fit at once: {fit} of them do."
    else:
        note = ""
    return Concurrency(fit, share, note)


def local_nodes() -> list[Node]:
    """This machine as the only node, with the cores that this process may use."""
    return [{"CPU": float(allowed_cores()[0]), "GPU": float(torch.cuda.device_count())}]


@dataclass(frozen=True)
class CheckedTrial:
    """A trial that can start."""

    number: int
    values: dict[str, Any]
    """Value by axis path."""
    experiment: Experiment
    num_parameters: int
    total_steps: int
    configuration: int
    """Number of the values among those of the sweep."""
    seed: int | None
    """Seed of the experiment where the sweep has several."""


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
    chooser: TrialChooser | None
    """Choice of the trials that train next, of a scheduler that has one."""
    num_trials: int
    """Number of trials of the whole sweep: of configurations times seeds."""


def prepare_sweep(
    sweep: Sweep,
    source: str,
    nodes: Sequence[Node],
    *,
    remote: bool,
    stored: Sweep | None = None,
    threads: int | None = None,
) -> PreparedSweep:
    """Check everything that can be checked before a process is started.

    `source` names the sweep in error messages; `remote`: trials run on a cluster, whose nodes are
    checked apart; `stored` is the spec of a sweep that is resumed, as it was last stored, `threads`
    those of its workers so far. Raises UserError where something is wrong; nothing of the sweep is
    left behind.
    """
    home = Home.from_environment()
    check_sweep(sweep, source)
    check_sections(sweep, "sweep_sections")
    home.check_place()
    sweep, tracking_uri = portable_sweep(sweep, home, stored)
    base = trial_experiment(sweep, Trial(0, "", typical_values(sweep)))
    check_home_budget(home, base)
    messages: list[str] = []
    grows = False
    if remote and is_connected():
        from ditlab.cluster.survey import check_nodes  # imports ray

        check_nodes(base, messages.append, everywhere=True)  # any node may lead a trial
        grows = has_autoscaler()
    known: dict[str, tuple[int, int]] = {}
    trials = []
    # All configurations at the first seed come first, so that a sweep that is stopped has compared
    # all of them.
    runs = product(sweep.first_seeds, enumerate(enumerate_trials(sweep) or []))
    for number, (seed, (configuration, values)) in enumerate(runs):
        experiment = trial_experiment(
            sweep, Trial(number, "", values, configuration=configuration, seed=seed)
        )
        try:
            checked = _check_trial(experiment, home, remote, known)
        except UserError as error:
            raise UserError(f"trial {number} ({written(values)}): {error}") from None
        trials.append(CheckedTrial(number, values, experiment, *checked, configuration, seed))
    total_steps = max(
        [_check_trial(base, home, remote, known)[1], *(trial.total_steps for trial in trials)]
    )
    launch = Launch(base, home)
    metrics = [*metric_names(base, launch.data, launch.model.objective), *pace_names(base)]
    for name in sweep.metrics:
        if name not in metrics:
            raise UserError(
                f"metric={name} is reported by no trial of this sweep; {nearest(name, metrics)}"
            )
    incomparable = _check_comparable(sweep, home)
    num_runs = len(trials) or (sweep.trials or 1) * len(sweep.first_seeds)
    nodes = nodes_for_workers(base, nodes, grows)
    resources = base.resources
    concurrency = plan_concurrency(sweep, resources, nodes, num_runs, grows)
    share = concurrency.share
    fewer = ""
    if not remote and not threads and share.threads > 1 and not resources.gpus_per_worker:
        threads, reason = worker_threads(resources, concurrent=concurrency.num_trials)
        if threads < share.threads:
            fewer = f"threads of each worker: {threads}, as {reason}"
        else:
            fewer = ""
    if threads and not resources.cpus_per_worker:
        concurrency = replace(concurrency, share=CpuShare(threads, min(float(threads), share.cpus)))
    threads = concurrency.share.threads
    gpus = resources.gpus_per_worker
    workers = resources.max_workers
    if gpus:
        where = f"{gpus:g} GPU"
    else:
        where = f"{threads} CPU thread{'s' if threads > 1 else ''}"
    about = (
        f"{sweep.name}: {base.model.family}, {len(sweep.space)} "
        f"ax{'e' if len(sweep.space) > 1 else 'i'}s, {sweep.search.kind} search, scheduler "
        f"{sweep.scheduler.kind}, {workers} worker{'s' if workers > 1 else ''} with {where} a "
        "trial"
    )
    warning = (
        incomparable
        and f"warning: {incomparable} None will be the best of all; they are ranked in groups."
    )
    notes = [
        about,
        *seeds_notes(sweep, num_runs),
        *filter(None, [concurrency.note, fewer, warning]),
        *messages,
    ]
    chooser = make_chooser(sweep, total_steps, home)
    return PreparedSweep(
        sweep, home, tracking_uri, base, trials, total_steps, concurrency, notes, chooser, num_runs
    )


def seeds_notes(sweep: Sweep, num_runs: int) -> list[str]:
    """Write lines on the seeds of a sweep: how many runs they make, and which axes keep draws from
    being shared.

    `num_runs`: runs under the first seeds.
    """
    notes = []
    if sweep.num_seeds > 1:
        seeds = sweep.first_seeds
        configurations = (
            f"{num_runs // len(seeds)} configuration{'s' if num_runs > len(seeds) else ''}"
        )
        if sweep.num_seeds > len(seeds):
            more = f", and up to seed {sweep.seed_list[-1]} where configurations are close"
        else:
            more = ""
        notes.append(
            f"{configurations} under {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}): "
            f"{num_runs} runs{more}"
        )
    axes = unshared_axes(sweep)
    if axes:
        notes.append(
            f"trials that differ in {' or '.join(axes)} do not share "
            f"draws{UNPAIRED if notes else ''}."
        )
    return notes


def measured_parts(
    sweep: Sweep, tags: Mapping[str, str], training_data: str
) -> dict[tuple[str, str], str]:
    """Digests of what the metrics that rank a sweep are measured with, by group and part.

    `tags` are those of measurements, by group; `training_data` is a fingerprint. Without the
    sampler: where that is an axis, the quality of samples is what it is chosen by. Without the seed
    of samples where there are several.
    """
    found: dict[tuple[str, str], str] = {}
    for metric in filter(_group_of, sweep.metrics):
        group = _group_of(metric)
        known = Measurement.parse(tags.get(group, ""))
        if known:
            parts = known.parts
        elif group == "train":
            parts = {"training data": training_data}
        else:
            parts = {}
        found |= {
            (group, part): digest[:SHOWN]
            for part, digest in parts.items()
            if part not in {"sampler", *ROUNDING, *(["seed"] if sweep.num_seeds > 1 else [])}
            and concerns(part, metric)
        }
    return found


def _group_of(metric: str) -> str:
    """The group whose measurement tells what a metric is measured with; empty for one that is not
    measured.
    """
    return next((group for group in MEASURED if metric.startswith(f"{group}/")), "")


def _check_comparable(sweep: Sweep, home: Home) -> str:
    """Return a sentence on axes whose values are measured in different ways; empty where there is
    none.

    Raises UserError where the search or the scheduler would choose by such numbers.
    """
    opened: dict[str, DataSplits] = {}

    def measured(values: Mapping[str, Any]) -> dict[tuple[str, str], str]:
        experiment = trial_experiment(sweep, Trial(0, "", values))
        key = json.dumps(experiment.to_dict()["data"], sort_keys=True)
        data = opened[key] = opened.get(key) or Launch(experiment, home).data
        evaluation = experiment.evaluation
        precision = experiment.training.precision
        device = "cuda" if experiment.resources.gpus_per_worker else "cpu"
        groups = {
            "eval": held_out_measurement(
                experiment, data, evaluation.limit, precision, device, home
            ),
            # without what only a run knows: its batches and the networks of features
            "quality": quality_measurement(
                experiment,
                data,
                evaluation.quality or 0,
                evaluation.quality or 0,
                0,
                precision,
                device,
                "",
            ),
        }
        tags = {group: each.to_tag() for group, each in groups.items()}
        return measured_parts(sweep, tags, data.fingerprint)

    apart: dict[str, list[str]] = {}
    for path, axis in sweep.space.items() if any(map(_group_of, sweep.metrics)) else ():
        ways: list[dict[tuple[str, str], str]] = []
        for value in axis.ends():
            # values that do not go together are found where trials are checked
            with suppress(UserError):
                ways.append(measured(values_with(sweep, path, value)))
        parts = dict.fromkeys(
            part for way in ways for part in way if len({each.get(part) for each in ways}) > 1
        )
        if parts:
            apart[path] = list(dict.fromkeys(part for _, part in parts))
    if not apart:
        return ""
    names = " and ".join(f"space.{path}" for path in apart)
    differing = ", ".join(dict.fromkeys(part for each in apart.values() for part in each))
    metrics = " and ".join(filter(_group_of, sweep.metrics))
    problem = (
        f"{names}: trials of different values do not compare by {metrics}, which they measure "
        f"with other {differing}"
    )
    chooser = "search" if isinstance(sweep.search, OptunaSearch) else "scheduler"
    if chooser == "search" or not isinstance(sweep.scheduler, NoScheduler):
        raise UserError(
            f"{problem}, and {chooser}.kind={getattr(sweep, chooser).kind} would choose among "
            "them by it; make a sweep of each value, or set search.kind to random or grid and "
            "scheduler.kind to none."
        )
    return f"{problem}."


def _check_trial(
    experiment: Experiment, home: Home, remote: bool, known: dict[str, tuple[int, int]]
) -> tuple[int, int]:
    """Return (parameters, steps) of an experiment. Raises UserError if it could not start.

    `known` keeps the results, as each check is done once for all trials that agree in the sections
    that it depends on.
    """
    spec = experiment.to_dict()
    key = json.dumps([spec[section] for section in CHECKED_SECTIONS], sort_keys=True)
    if key not in known:
        launch = Launch(experiment, home)
        check_parts(launch, False, remote)
        weights = weights_of(experiment, home)
        if weights:
            weights.check(launch.model.network)
        known[key] = launch.model.counts.total, launch.plan.total_steps
    found = known[key]
    if experiment.start is not None:  # each kind of fork is checked against its parent's checkpoint
        parts = [
            found[1],
            experiment.optimizer.kind,
            *(spec[section] for section in STARTED_SECTIONS),
        ]
        key = json.dumps(parts, sort_keys=True)
        if key not in known:
            check_start(experiment, build_model(experiment), home, found[1])
            known[key] = found
    return found
