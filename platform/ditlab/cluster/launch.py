"""Training of a run by Ray Train workers, with retries after failures that another attempt may
overcome.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.capacity import (
    CpuShare,
    check_capacity,
    cluster_nodes,
    cpu_share,
    has_autoscaler,
    nodes_for_workers,
    waiting_message,
)
from ditlab.cluster.node_report import versions
from ditlab.cluster.ray_failures import unwrap
from ditlab.cluster.session import is_connected, lost_ray, ray_session
from ditlab.cluster.survey import check_joining_node
from ditlab.errors import RunFailed, Unreachable, first_line
from ditlab.runs.budget import budget_watched
from ditlab.runs.cores import recorded_threads
from ditlab.runs.evaluator_process import POLL_INTERVAL, answer_request, async_evaluator
from ditlab.runs.failures import FailureKind, Recovery
from ditlab.runs.launch import Launch, RunCallbacks
from ditlab.runs.signals import GRACE, StopRequests, stop_signals
from ditlab.spec.experiment import Experiment
from ditlab.spec.plugins import plugin_packages
from ditlab.training.reporting import RunOutcome

if TYPE_CHECKING:
    from ditlab.cluster.workers import GroupSpec, WorkerPool


def train_on_ray(launch: Launch, callbacks: RunCallbacks, grace: float = GRACE) -> RunOutcome:
    """Train a run on the cluster that this process is connected to, else on a Ray instance of its
    own.

    A signal makes the workers save a final checkpoint; a second one, or `grace` seconds, ends them
    at once.

    Raises UserError where a worker found the input to be wrong, and RunFailed where the run failed
    and another attempt would fail as well.
    """
    experiment = launch.experiment
    resources = experiment.resources
    needed = cpu_share(resources, [{"CPU": os.cpu_count() or 1}]).threads * resources.min_workers
    if experiment.evaluation.mode == "async":
        needed += experiment.evaluation.resources.cpus or 0
    is_on_cluster = is_connected()
    if not is_on_cluster:
        callbacks.on_stage("starting Ray")
    with ray_session(None, needed, callbacks.warn), stop_signals(grace) as stop:
        from ditlab.cluster.workers import GroupSpec, WorkerPool

        nodes = nodes_for_workers(experiment, cluster_nodes(), has_autoscaler())
        share = cpu_share(resources, nodes)
        # A resumed run has as many threads as before, since its sums depend on them.
        number = launch.threads and launch.threads.number
        if launch.resumed and is_on_cluster and not resources.cpus_per_worker:
            number = recorded_threads(launch.folder)
        if number:
            if is_on_cluster and number > share.cpus:
                callbacks.warn(
                    f"{number} threads of each worker, as before, compute on {share.cpus:g} "
                    "cores: slower."
                )
            share = CpuShare(number, min(float(number), share.cpus))
        message = waiting_message(resources, share, nodes)
        if message:
            callbacks.warn(message)
        pool = WorkerPool(launch.folder.path / "ray", keep=False)
        if is_on_cluster:
            launch = launch.changed(
                versions=versions(packages=plugin_packages(experiment.to_dict()))
            )
        callbacks.on_stage("starting workers")
        try:
            with budget_watched(launch, stop, callbacks.warn):
                return train_with_retries(
                    launch, pool, GroupSpec(resources, share), stop, callbacks
                )
        except KeyboardInterrupt:
            pool.shut_down(timeout=0.0)
            raise
        finally:
            pool.shut_down()


def train_with_retries(
    launch: Launch,
    pool: "WorkerPool",
    spec: "GroupSpec",
    stop: StopRequests,
    callbacks: RunCallbacks,
) -> RunOutcome:
    """Attempt a run until it has ended, or another attempt would fail as well. Raises as
    `train_on_ray` does.

    `pool` gives the worker group of `spec`; `stop` has the requests to stop the run after a final
    checkpoint.
    """
    evaluate = partial(evaluate_on_ray, threads=spec.share.threads)
    with async_evaluator(launch, evaluate, callbacks.warn):
        return _retried(launch, pool, spec, stop, callbacks)


def _retried(
    launch: Launch,
    pool: "WorkerPool",
    spec: "GroupSpec",
    stop: StopRequests,
    callbacks: RunCallbacks,
) -> RunOutcome:
    from ditlab.cluster.attempt import Attempt

    experiment = launch.experiment
    store = launch.checkpoints()
    recovery = Recovery(experiment)
    number = 0
    saved = -1
    before: FailureKind | None = None
    tags: Mapping[str, str] = {}
    while True:
        ended = Attempt(launch, pool.idle_group(spec), pool.keep, callbacks).run(stop)
        if isinstance(ended, RunOutcome):
            return ended
        if ended.kind is not FailureKind.NO_RESOURCES:  # waiting is no failure
            number += 1
            tags = ended.tags(number)
            callbacks.on_failure(tags)
        with suppress(Unreachable):  # an unknown step counts as no progress
            saved = store.last_step()
        lost = lost_ray()
        if lost:
            if not stop.count:
                raise RunFailed(
                    f"{lost}; `ditlab train SPEC --resume {launch.run_id}` goes on.",
                    kind="lost_node",
                )
            callbacks.warn(
                f"{lost}, before the workers had saved: the last checkpoint is of step "
                f"{max(saved, 0)}."
            )
            return _interrupted(store, saved)
        recovery = recovery.after(ended, saved)
        if stop.count:  # before it could save, or between two attempts
            return _interrupted(store, saved)
        still_waits = ended.kind is before is FailureKind.NO_RESOURCES
        if not still_waits:  # one warning a wait
            callbacks.warn(recovery.message_for(ended))
        before = ended.kind
        # The tags go along for a first worker that dies before it can keep a journal.
        launch = launch.changed(resumed=True, memory=recovery.memory, tags={**launch.tags, **tags})


def _interrupted(store: CheckpointStore, saved: int) -> RunOutcome:
    """Outcome of a run that ended without a final checkpoint; `saved` is the step of its last one,
    -1 for none.
    """
    if saved < 0:
        return RunOutcome("interrupted", 0, {}, None)
    return RunOutcome("interrupted", saved, {}, store.location_of(saved))


@contextmanager
def cluster_connection(
    experiment: Experiment, address: str, warn: Callable[[str], None]
) -> Iterator[None]:
    """Connect to a cluster for the length of the block, after a check that its nodes can train the
    experiment.

    Raises UserError before anything of the run exists.
    """
    with ray_session(address, 0, warn):
        from ditlab.cluster.survey import check_nodes

        grows = has_autoscaler()
        check_capacity(
            experiment.resources, nodes_for_workers(experiment, cluster_nodes(), grows), grows=grows
        )
        check_nodes(experiment, warn)
        yield


def evaluate_on_ray(launch: Launch, ended: threading.Event, threads: int) -> str:
    """Have a request answered by a Ray task, as `Evaluate` says, on whatever node has its
    resources.
    """
    resources = launch.experiment.evaluation.resources
    task = ray.remote(
        num_cpus=resources.cpus or 0,
        num_gpus=resources.gpus,
        resources=resources.custom or None,
        max_retries=0,
        max_calls=1,  # a process for each: its memory and its priority are those of no other task
        # neither on the launcher's node first, nor in the bundle of a sweep's trial
        scheduling_strategy="SPREAD",
    )(answer_on_node)
    result = task.remote(launch.to_dict(), threads)
    while not lost_ray():
        if ended.is_set():
            ray.cancel(result, force=True)
            return ""
        try:
            ray.get(result, timeout=POLL_INTERVAL)
            return ""
        except ray.exceptions.GetTimeoutError:
            continue
        except ray.exceptions.RayError as error:
            return first_line(unwrap(error) or error)
    return lost_ray()


def answer_on_node(values: dict[str, Any], threads: int) -> None:
    """Answer a run's request for an evaluation, on the node of this task, which may have joined
    since the run began.

    Raises UserError for a node with other versions than the workers'.
    """
    launch = Launch.from_dict(values)
    os.environ["DITLAB_HOME"] = str(launch.home.root)
    check_joining_node(launch)
    answer_request(launch, threads)
