"""Training of an experiment, as a function: what `ditlab train` calls, for notebooks and
scripts.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial, partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ditlab.api.run import Run, open_run
from ditlab.cluster.session import cluster_address, is_connected
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.parts import absent_part, display_html, find_display, load_part, start_checks
from ditlab.progress import ignore
from ditlab.runs.cores import recorded_threads, sleep_at_barriers, worker_threads
from ditlab.runs.launch import Launch, RecordedProof, RunCallbacks, StartRefused, StartSituation
from ditlab.runs.lifecycle import RunLifecycle
from ditlab.runs.locks import LOCK_LEASE, lock_run
from ditlab.runs.observers import ObserverMaker, RunEnd, RunObservers, run_observer_makers
from ditlab.runs.prepare import begin_launch, check_launch, launch_notes, startup_lines
from ditlab.runs.signals import GRACE
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import validated
from ditlab.tracking.access import redact
from ditlab.tracking.records import read_record
from ditlab.training.reporting import RunOutcome, TrainingProgress

if TYPE_CHECKING:
    from ditlab.intervals import Interval
    from ditlab.runs.seed_group import GroupPlace, GroupRun, SeedGroup


_log = logging.getLogger("ditlab")


@dataclass(frozen=True)
class TrainingResult:
    """End of a training run."""

    run_id: str
    status: Literal["finished", "interrupted", "stopped"]
    step: int
    """Optimiser steps done."""
    total_steps: int
    """Optimiser steps of the whole run."""
    metrics: dict[str, float]
    """Metrics of the last step and the last evaluation, under their MLflow names (`train/loss`)."""
    checkpoint: str | None
    """Path or URI of the last checkpoint."""
    tracking_uri: str
    """MLflow server or database that holds the run, without a password."""
    folder: Path
    """Folder of the run: spec, journal, checkpoints, sample pictures."""
    reason: str = ""
    """Clause on the budget that ended it; empty for another end."""

    @property
    def run(self) -> Run:
        """The run, for its metrics, samples, evaluation and export."""
        return open_run(self.run_id)

    def to_dict(self) -> dict[str, Any]:
        """The fields of `ditlab train --json`."""
        names = ("run_id", "status", "reason", "step", "metrics", "checkpoint", "tracking_uri")
        return {name: getattr(self, name) for name in names}

    _repr_html_ = partialmethod(display_html, "result")


@dataclass(frozen=True)
class GroupResult:
    """End of a group of runs that differ in the seed alone."""

    run_id: str
    """Id of the group."""
    status: Literal["finished", "interrupted", "failed"]
    seeds: list[int]
    results: list[TrainingResult]
    """Runs that trained now, in the order of the seeds."""
    intervals: "dict[str, Interval]"
    """Interval of each metric's mean over the seeds that have finished, by MLflow name."""
    folder: Path

    def to_dict(self) -> dict[str, Any]:
        """The fields of `ditlab train --seeds --json`."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "seeds": self.seeds,
            "runs": [result.to_dict() for result in self.results],
            "metrics": {name: interval.to_dict() for name, interval in self.intervals.items()},
        }


@dataclass(frozen=True)
class TrainingPlan:
    """A training run that has passed every check and was not started."""

    spec_hash: str
    """Hash over the fields that decide the trained weights."""
    total_steps: int
    num_parameters: int
    notes: list[str]
    """Lines that describe the run and its data."""
    not_trained: Mapping[str, int]
    """Parameters that stay as they are, by the module that holds them."""


def train(
    experiment: Experiment | str | Path,
    overrides: Sequence[str] = (),
    *,
    local: bool = False,
    address: str | None = None,
    resume: str | None = None,
    start_from: str | None = None,
    weights_only: bool = False,
    grace: float = GRACE,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    say: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
    place: "GroupPlace | None" = None,
    **checks: bool,
) -> TrainingResult:
    """Train an experiment and return its result. Prints nothing by itself, but a bar in a notebook.

    Works in any thread. In the main thread the first Ctrl-C ends the run after a final checkpoint,
    and the result's status is `interrupted`; a second one raises KeyboardInterrupt.

    Args:
        experiment: a validated experiment, or the path of its YAML.
        overrides: `field.path=value` changes of the YAML, as `--set` takes them.
        local: True to train in this process, without Ray.
        address: Ray cluster to train on; None: RAY_ADDRESS, else a Ray instance on this machine.
        resume: id or name of a run to go on with; `auto`: the newest unfinished run of this spec,
            if there is one.
        start_from: `RUN@STEP`, a checkpoint of another run that this one goes on from (a fork);
            `RUN`: its newest one.
        weights_only: True to take over its weights alone, averaged ones where it keeps an average,
            from step 0.
        grace: seconds from the first signal (Ctrl-C, SIGTERM, SIGUSR1) to the end; what is not
            saved by then is lost.
        on_progress: receives step, metrics and speed, a few times a second; None: a notebook shows
            a bar, else nothing.
        on_stage: receives what is waited for before the first step, as `starting workers`.
        say: receives lines that describe the run at its start.
        warn: receives warnings; None: the logger `ditlab`.
        place: the run's place in a group of seeds, as `train_seeds` gives it; None: a run of its
            own.
        checks: checks to make before the run begins, by name, whose findings are kept with it;
            `prove=True`: prove the engine on this machine (`ditlab.prove`, of the add-on check).

    Raises:
        UserError: the input is wrong; the message names the field, its value and the remedy.
        RunFailed: the run started and failed; `StartRefused`, with nothing started, where a check
            found something off.
    """
    experiment = _validated(experiment, overrides, start_from, weights_only, resume)
    address = _cluster(local, address)
    check_start = _start_check(experiment, address, checks)
    say = say or ignore
    warn = warn or _log.warning
    with ExitStack() as stack:
        if on_progress is None and on_stage is None and (bar := find_display("progress")()):
            stack.callback(bar.close)
            on_progress = bar.update
            on_stage = bar.stage
        on_progress = on_progress or ignore
        on_stage = on_stage or ignore
        if address is not None:
            from ditlab.cluster.launch import cluster_connection

            on_stage(f"connecting to {address}")
            stack.enter_context(cluster_connection(experiment, address, say))
        on_stage("preparing data")
        checked = check_launch(experiment, resume, local=local, remote=address is not None)
        recorded = None
        checked = _with_threads(checked, local)
        makers = run_observer_makers(checked.experiment, checked.resumed, warn)
        if check_start:
            threads = checked.threads and checked.threads.number
            recorded = check_start(StartSituation(threads, say, on_stage))
        launch = begin_launch(checked, recorded, place)
        if launch.threads:
            sleep_at_barriers(launch.threads.number, launch.experiment.resources.min_workers)
        for line in startup_lines(launch):
            say(line)
        run_training: Callable[..., RunOutcome]
        if local:
            from ditlab.runs.local import train_in_process

            run_training = train_in_process
        else:
            from ditlab.cluster.launch import train_on_ray

            run_training = train_on_ray
        return train_launch(
            launch, makers, local, partial(run_training, grace=grace), on_progress, on_stage, warn
        )


def train_launch(
    launch: Launch,
    makers: Sequence[ObserverMaker],
    local: bool,
    run_training: Callable[[Launch, RunCallbacks], RunOutcome],
    on_progress: Callable[[TrainingProgress], None],
    on_stage: Callable[[str], None],
    warn: Callable[[str], None],
) -> TrainingResult:
    """Train a launch that has begun, by `run_training`, to its end. Raises RunFailed."""
    lifecycle = RunLifecycle(launch)
    # the nodes of a cluster may be lost
    timeout = LOCK_LEASE if not local and is_connected() else 0.0
    with (
        lock_run(launch.folder, timeout, warn),
        RunObservers([maker(launch) for maker in makers], warn) as observers,
    ):
        callbacks = _callbacks(lifecycle, observers, on_progress, warn, on_stage)
        lifecycle.start(launch.plan.total_steps)
        with lifecycle.recording_failure():
            outcome = run_training(launch, callbacks)
        lifecycle.end(outcome)
        reason = ""
        if outcome.status == "interrupted":
            with suppress(UserError):  # a record that cannot be read costs the reason alone
                reason = read_record(launch.folder).message
        observers.end = RunEnd(outcome.status, reason)
    return TrainingResult(
        launch.run_id,
        outcome.status,
        outcome.step,
        launch.plan.total_steps,
        outcome.metrics,
        outcome.checkpoint,
        redact(launch.tracking_uri),
        launch.folder.path,
        reason,
    )


def _start_check(
    experiment: Experiment, address: str | None, asked: Mapping[str, bool]
) -> Callable[[StartSituation], RecordedProof] | None:
    """Return the check that is asked for; None for none.

    Raises UserError for one that cannot be made, TypeError for a name that is no check's.
    """
    known = start_checks()
    for name in asked.keys() - known.keys():
        reason = absent_part("option", f"--{name}")
        if not reason:
            raise TypeError(f"train() got an unexpected keyword argument {name!r}")
        if asked[name]:
            raise UserError(reason)
    chosen = [name for name, is_asked in asked.items() if is_asked]
    if not chosen:
        return None
    if len(chosen) > 1:
        raise UserError(
            f"{' and '.join(chosen)} are each a check before a run begins, which keeps one; "
            "ask for one."
        )
    check: Callable[[StartSituation], RecordedProof] = load_part(
        "option", f"--{chosen[0]}", known[chosen[0]].target
    )(experiment, address)
    return check


def _callbacks(
    lifecycle: RunLifecycle,
    observers: RunObservers,
    on_progress: Callable[[TrainingProgress], None],
    warn: Callable[[str], None],
    on_stage: Callable[[str], None],
) -> RunCallbacks:
    """Callbacks of a run, of which its observers are told as well."""

    def progressed(progress: TrainingProgress) -> None:
        observers.tell(lambda observer: observer.progressed(progress))
        on_progress(progress)

    def warned(text: str) -> None:
        observers.tell(lambda observer: observer.warned(text))
        warn(text)

    def attempt_failed(tags: Mapping[str, str]) -> None:
        lifecycle.record_attempt_failure(tags)
        observers.tell(lambda observer: observer.attempt_failed(tags))

    return RunCallbacks(progressed, warned, attempt_failed, on_stage)


def train_seeds(
    experiment: Experiment | str | Path,
    overrides: Sequence[str] = (),
    *,
    seeds: int,
    resume: str | None = None,
    start_from: str | None = None,
    weights_only: bool = False,
    say: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
    **settings: Any,
) -> GroupResult:
    """Train an experiment under several seeds, one after the other: its own, the next number, and
    so on.

    The runs are a group: a run of its own stands for it, with mean and interval of each metric over
    seeds. A run that fails is warned of, and the others go on. The first Ctrl-C ends the run that
    trains after a final checkpoint, and the group with it.

    Args:
        experiment, overrides, start_from, weights_only: as `train` takes them.
        seeds: number of seeds, 2 or more.
        resume: id or name of a group to go on with, `auto`: the newest unfinished one of this spec.
            Runs of it that have finished are left as they are; it may have more seeds than before.
        say, warn: as `train` takes them.
        settings: further arguments of `train`; its checks are made once, before the first run.

    Raises:
        UserError: the input is wrong; the message names the field, its value and the remedy.
        RunFailed: a run failed, once all have ended; `StartRefused`, with nothing trained.
    """
    if seeds < 2:
        raise UserError(f"seeds={seeds} makes no group; give 2 or more, or train one run.")
    # imports SciPy, which other runs need not
    from ditlab.runs.seed_group import GroupRun, open_group

    experiment = _validated(experiment, overrides, start_from, weights_only, None)
    group = open_group(experiment, seeds, resume)
    say = say or ignore
    warn = warn or _log.warning
    if group.note:
        say(group.note)
    say(
        f"group {group.folder.run_id}: {seeds} seeds, {group.seeds[0]} to {group.seeds[-1]}, one "
        "after the other"
    )
    checks = {name: settings.pop(name) for name in start_checks() if name in settings}
    results: list[TrainingResult] = []
    failures: dict[int, RunFailed] = {}
    status: Literal["finished", "interrupted", "failed"] = "finished"
    with lock_run(group.folder), GroupRun(group) as tracked:
        for number, seed, run_id in _unfinished(group, tracked):
            say(f"seed {seed}, {number + 1} of {seeds}")
            try:
                result = train(
                    group.member(number),
                    resume=run_id,
                    say=say,
                    warn=warn,
                    place=group.place(number),
                    **settings,
                    **checks,
                )
            except StartRefused:
                raise
            except RunFailed as error:
                warn(str(error))
                failures[seed] = error
                continue
            results.append(result)
            checks = {}  # they are made once
            if result.status != "finished":
                status = "interrupted"
                break
            tracked.finished(seed, group.home.run(result.run_id))
        if failures and status == "finished":
            status = "failed"
        tracked.ended(status)
    if status == "failed":
        first = next(iter(failures.values()))
        listed = ", ".join(map(str, failures))
        raise RunFailed(
            f"group {group.folder.run_id}: seed {listed} failed; the first: {first}",
            kind=first.kind,
        )
    return GroupResult(
        group.folder.run_id, status, group.seeds, results, tracked.intervals(), group.folder.path
    )


def _unfinished(group: "SeedGroup", tracked: "GroupRun") -> Iterator[tuple[int, int, str | None]]:
    """Yield number, seed and id (None: it has not begun) of each run of a group that has not
    finished; add those that have to the group's run.
    """
    for number, seed in enumerate(group.seeds):
        known = group.begun().get(number)
        if known and known.status == "finished":
            tracked.finished(seed, group.home.run(known.run_id))
        else:
            yield number, seed, known.run_id if known else None


def plan_training(
    experiment: Experiment | str | Path,
    overrides: Sequence[str] = (),
    *,
    local: bool = False,
    address: str | None = None,
    resume: str | None = None,
    start_from: str | None = None,
    weights_only: bool = False,
) -> TrainingPlan:
    """Check an experiment as `train` does, and start nothing. Contacts no cluster. Raises
    UserError.
    """
    experiment = _validated(experiment, overrides, start_from, weights_only, resume)
    address = _cluster(local, address)
    launch = check_launch(experiment, resume, local=local, remote=address is not None)
    if not address:
        launch = _with_threads(launch, local)
    counts = launch.model.counts
    return TrainingPlan(
        experiment.content_hash(),
        launch.plan.total_steps,
        counts.total,
        launch_notes(launch),
        counts.not_trained,
    )


def _with_threads(launch: Launch, local: bool) -> Launch:
    """The launch with its threads on this machine's CPUs; as it is with GPUs, and on a cluster."""
    resources = launch.experiment.resources
    if resources.gpus_per_worker or not (local or not is_connected()):
        return launch
    before = recorded_threads(launch.folder) if launch.resumed else None
    return launch.changed(threads=worker_threads(resources, before))


def _validated(
    experiment: Experiment | str | Path,
    overrides: Sequence[str],
    text: str | None,
    weights_only: bool,
    resume: str | None,
) -> Experiment:
    """The experiment itself, or the one in a YAML file, with the start that a caller asks for.
    Raises UserError.
    """
    if text is None and not weights_only:
        return validated(experiment, overrides)
    from ditlab.runs.forks import requested_start

    start = requested_start(text, weights_only, resume, Home.from_environment())
    if isinstance(experiment, Experiment):
        return validated(experiment, overrides).replace("start", start)
    assert start is not None, "`text` is given"
    return validated(experiment, [start.override(), *overrides])


def _cluster(local: bool, address: str | None) -> str | None:
    """Address of the cluster to train on; None for this machine. Raises UserError for `local` with
    an address.
    """
    if local and address:
        raise UserError(f"--local and --address {address} exclude each other; leave one out.")
    return None if local else cluster_address(address)
