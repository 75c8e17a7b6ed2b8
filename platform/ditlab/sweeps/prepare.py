"""Preparation of a sweep: every check that needs no worker process, for each trial that is known
beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, product
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
from ditlab.data.images.captions import LABEL
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.quality.measurement import held_out_measurement, quality_measurement
from ditlab.receipts.records import ROUNDING, SHOWN, Measurement, concerns
from ditlab.reports.sweep_records import Trial
from ditlab.runs.budget import check_home_budget
from ditlab.runs.cores import allowed_cores, worker_threads
from ditlab.runs.forks import check_start
from ditlab.runs.launch import Launch, weights_of
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
    num_repeats,
    typical_values,
    unshared_axes,
    valid_combinations,
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
MEASURED = ("eval", "quality", "train")
"""Groups of metrics that depend on what they are measured with; those of `train` on the data
alone.
"""
# Those that a fork's start depends on, besides its length and the kind of its optimiser.
STARTED_SECTIONS = ("start", "model", "objective", "training", "data")
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
    wanted = sweep.concurrent
    if not wanted:  # as many as fit with one core a worker, or with the spec's `cpus_per_worker`
        alone = CpuShare(1, 1.0)
        if resources.cpus_per_worker:
            alone = cpu_share(resources, nodes)
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
    note = ""
    if sweep.concurrent:
        note = f"concurrent={sweep.concurrent} trials do not fit at once: {fit} of them do."
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
    trials = _checked_trials(sweep, home, remote, known)
    _, base_steps = _check_trial(base, home, remote, known)
    total_steps = max([base_steps, *(trial.total_steps for trial in trials)])
    _check_metrics(sweep, base, home)
    incomparable = _check_comparable(sweep, home)
    num_runs = len(trials) or _most_configurations(sweep) * len(sweep.first_seeds)
    nodes = nodes_for_workers(base, nodes, grows)
    resources = base.resources
    concurrency = plan_concurrency(sweep, resources, nodes, num_runs, grows)
    fewer_trials = concurrency.note
    fewer_threads = ""
    if not remote and not threads:
        threads, fewer_threads = _free_threads(concurrency, resources)
    if threads and not resources.cpus_per_worker:
        share = CpuShare(threads, min(float(threads), concurrency.share.cpus))
        concurrency = replace(concurrency, share=share)
    notes = [_about(sweep, base, concurrency), *seeds_notes(sweep, num_runs)]
    notes += filter(None, [repeats_note(sweep)])
    notes += filter(None, [fewer_trials, fewer_threads])
    if incomparable:
        notes.append(
            f"warning: {incomparable} None will be the best of all; they are ranked in groups."
        )
    notes += messages
    chooser = make_chooser(sweep, total_steps, home)
    return PreparedSweep(
        sweep, home, tracking_uri, base, trials, total_steps, concurrency, notes, chooser, num_runs
    )


def _checked_trials(
    sweep: Sweep, home: Home, remote: bool, known: dict[str, tuple[int, int]]
) -> list[CheckedTrial]:
    """Check every trial that can be enumerated; `known` as in `_check_trial`.

    All configurations at the first seed come first, so that a sweep that is stopped has compared
    all of them.
    """
    runs = product(sweep.first_seeds, enumerate(enumerate_trials(sweep) or []))
    trials = []
    for number, (seed, (configuration, values)) in enumerate(runs):
        planned = Trial(number, "", values, configuration=configuration, seed=seed)
        experiment = trial_experiment(sweep, planned)
        try:
            checked = _check_trial(experiment, home, remote, known)
        except UserError as error:
            raise UserError(f"trial {number} ({written(values)}): {error}") from None
        trials.append(CheckedTrial(number, values, experiment, *checked, configuration, seed))
    return trials


def _check_metrics(sweep: Sweep, base: Experiment, home: Home) -> None:
    """Raise UserError for a metric of the sweep that no trial reports."""
    launch = Launch(base, home)
    reported = [*metric_names(base, launch.data, launch.model.objective), *pace_names(base)]
    for name in sweep.metrics:
        if name not in reported:
            raise UserError(
                f"metric={name} is reported by no trial of this sweep; {nearest(name, reported)}"
            )


def _free_threads(concurrency: Concurrency, resources: Resources) -> tuple[int | None, str]:
    """Return the threads of each worker beside the other work of this machine, and a note where
    they are fewer than its share of cores; None where the share stays.
    """
    share = concurrency.share
    if share.threads <= 1 or resources.gpus_per_worker:
        return None, ""
    threads, reason = worker_threads(resources, concurrent=concurrency.num_trials)
    if threads < share.threads:
        return threads, f"threads of each worker: {threads}, as {reason}"
    return threads, ""


def _about(sweep: Sweep, base: Experiment, concurrency: Concurrency) -> str:
    """Describe the sweep in a line."""
    resources = base.resources
    axes = "axes" if len(sweep.space) > 1 else "axis"
    workers = "workers" if resources.max_workers > 1 else "worker"
    threads = concurrency.share.threads
    devices = f"{threads} CPU thread{'s' if threads > 1 else ''}"
    if resources.gpus_per_worker:
        devices = f"{resources.gpus_per_worker:g} GPU"
    return (
        f"{sweep.name}: {base.model.family}, {len(sweep.space)} {axes}, {sweep.search.kind} "
        f"search, scheduler {sweep.scheduler.kind}, {resources.max_workers} {workers} with "
        f"{devices} a trial"
    )


def _most_configurations(sweep: Sweep) -> int:
    """Number of configurations of a search that proposes them: `trials`, or all that there are."""
    trials = sweep.trials or 1
    if any(axis.listed() is None for axis in sweep.space.values()):
        return trials
    return len(list(islice(valid_combinations(sweep), trials))) or trials


def repeats_note(sweep: Sweep) -> str:
    """Say how many different configurations there are, where these are fewer than `trials`; else
    empty.
    """
    trials = sweep.trials or 0
    num = num_repeats(sweep)
    if num:
        return (
            f"different configurations: {trials - num} in {trials} draws; a draw that repeats an "
            "earlier one is not trained again."
        )
    most = trials
    if isinstance(sweep.search, OptunaSearch):
        most = _most_configurations(sweep)
    if most < trials:
        return (
            f"different configurations: {most} in all, fewer than trials={trials}; none is "
            "trained twice."
        )
    return ""


def seeds_notes(sweep: Sweep, num_runs: int) -> list[str]:
    """Write lines on the seeds of a sweep: how many runs they make, and which axes keep draws from
    being shared.

    `num_runs`: runs under the first seeds.
    """
    notes = []
    unpaired = ""
    if sweep.num_seeds > 1:
        seeds = sweep.first_seeds
        num = num_runs // len(seeds)
        configurations = "1 configuration" if num == 1 else f"{num} configurations"
        more = ""
        if sweep.num_seeds > len(seeds):
            more = f", and up to seed {sweep.seed_list[-1]} where configurations are close"
        notes.append(
            f"{configurations} under {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}): "
            f"{num_runs} runs{more}"
        )
        unpaired = UNPAIRED
    axes = unshared_axes(sweep)
    if axes:
        notes.append(f"trials that differ in {' or '.join(axes)} do not share draws{unpaired}.")
    return notes


def measured_parts(
    sweep: Sweep, tags: Mapping[str, str], training_data: str
) -> dict[tuple[str, str], str]:
    """Digests of what the metrics that rank a sweep are measured with, by group and part.

    `tags` are those of measurements, by group; `training_data` is a fingerprint. Without the
    sampler: where that is an axis, the quality of samples is what it is chosen by. Without the seed
    of samples where there are several.
    """
    ignored = {"sampler", *ROUNDING}
    if sweep.num_seeds > 1:
        ignored.add("seed")
    found: dict[tuple[str, str], str] = {}
    for metric in filter(_group_of, sweep.metrics):
        group = _group_of(metric)
        known = Measurement.parse(tags.get(group, ""))
        parts: Mapping[str, str] = {}
        if known:
            parts = known.parts
        elif group == "train":
            parts = {"training data": training_data}
        for part, digest in parts.items():
            if part not in ignored and concerns(part, metric):
                found[group, part] = digest[:SHOWN]
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
    metrics = list(filter(_group_of, sweep.metrics))
    if not metrics:
        return ""
    differing = _differing_parts(sweep, home)
    if not differing:
        return ""
    axes = " and ".join(f"space.{path}" for path in differing)
    parts = ", ".join(dict.fromkeys(chain.from_iterable(differing.values())))
    problem = (
        f"{axes}: trials of different values do not compare by {' and '.join(metrics)}, which "
        f"they measure with other {parts}"
    )
    kind = None
    if isinstance(sweep.search, OptunaSearch):
        kind = f"search.kind={sweep.search.kind}"
    elif not isinstance(sweep.scheduler, NoScheduler):
        kind = f"scheduler.kind={sweep.scheduler.kind}"
    if kind:
        raise UserError(
            f"{problem}, and {kind} would choose among them by it; make a sweep of each value, "
            "or set search.kind to random or grid and scheduler.kind to none."
        )
    return f"{problem}."


def _differing_parts(sweep: Sweep, home: Home) -> dict[str, list[str]]:
    """Return the parts of measurements that differ between the values of an axis, by its path."""
    opened: dict[str, DataSplits] = {}
    found: dict[str, list[str]] = {}
    for path, axis in sweep.space.items():
        ways: list[dict[tuple[str, str], str]] = []
        for value in axis.ends():
            # values that do not go together are found where trials are checked
            with suppress(UserError):
                ways.append(_expected_parts(sweep, values_with(sweep, path, value), home, opened))
        parts = [
            part
            for group, part in dict.fromkeys(chain.from_iterable(ways))
            if len({way.get((group, part)) for way in ways}) > 1
        ]
        if parts:
            found[path] = list(dict.fromkeys(parts))
    return found


def _expected_parts(
    sweep: Sweep, values: Mapping[str, Any], home: Home, opened: dict[str, DataSplits]
) -> dict[tuple[str, str], str]:
    """Return `measured_parts` of a trial with these values, before it has run; `opened` keeps data
    by their spec.
    """
    experiment = trial_experiment(sweep, Trial(0, "", values))
    key = json.dumps(experiment.to_dict()["data"], sort_keys=True)
    if key not in opened:
        opened[key] = Launch(experiment, home).data
    data = opened[key]
    evaluation = experiment.evaluation
    precision = experiment.training.precision
    device = "cuda" if experiment.resources.gpus_per_worker else "cpu"
    num = evaluation.quality or 0
    measurements = {
        "eval": held_out_measurement(experiment, data, evaluation.limit, precision, device, home),
        # without what only a run knows: its batches and the networks of features
        "quality": quality_measurement(experiment, data, num, num, 0, precision, device, ""),
    }
    tags = {group: each.to_tag() for group, each in measurements.items()}
    return measured_parts(sweep, tags, data.fingerprint)


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
            weights.check(launch.model.network, launch.data.classes.get(LABEL, ()))
        known[key] = launch.model.counts.total, launch.plan.total_steps
    found = known[key]
    if experiment.start is None:
        return found
    # each kind of fork is checked against its parent's checkpoint
    _, total_steps = found
    sections = [spec[section] for section in STARTED_SECTIONS]
    key = json.dumps([total_steps, experiment.optimizer.kind, *sections], sort_keys=True)
    if key not in known:
        launch = Launch(experiment, home)
        check_start(experiment, launch.model, home, total_steps, classes=launch.data.classes)
        known[key] = found
    return found
