"""Runs a training as Ray Train workers, and again where what stopped it may pass."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ditlab.cluster.capacity import Share, check_capacity, waiting_line, worker_share
from ditlab.cluster.nodes.report import versions
from ditlab.cluster.session import ray_session
from ditlab.runs.failures import Kind, Recovery
from ditlab.runs.request import RunRequest
from ditlab.runs.signals import Wishes, stop_signals
from ditlab.spec.experiment import Experiment
from ditlab.storage.failures import Unreachable
from ditlab.training.reporting import Outcome, Progress

if TYPE_CHECKING:
    from ditlab.cluster.workers.group import Crews


def launch(
    request: RunRequest,
    cores: int,
    on_progress: Callable[[Progress], None],
    warn: Callable[[str], None],
    on_failure: Callable[[Mapping[str, str]], None],
) -> Outcome:
    """Trains on Ray, on the cluster that this process is connected to or else on an instance of its own; returns how it
    ended.

    Ctrl-C or SIGTERM asks the workers for a final checkpoint; a second one ends them at once. `on_failure` gets the
    tags of each failure before the run goes on or ends.

    Raises:
        UserError: the worker body says that the input is wrong.
        RunFailed: the run failed, and trying again would be in vain.
    """
    experiment = request.experiment()
    resources = experiment.resources
    needed = worker_share(experiment, [{"CPU": cores}]).threads * resources.min_workers
    joined = is_connected()
    with ray_session(None, needed), stop_signals() as wishes:
        from ditlab.cluster.autoscaling import possible_growth
        from ditlab.cluster.nodes.membership import alive_nodes
        from ditlab.cluster.workers.group import Crews

        nodes = [node["Resources"] for node in alive_nodes()]
        growth = possible_growth(nodes)
        share = worker_share(experiment, nodes, growth=growth)
        if line := waiting_line(experiment, share, nodes, growth):
            warn(line)
        crews = Crews(request.folder().path / "ray", keep=False)
        if joined:
            request = replace(request, versions=versions())
        try:
            return until_done(request, crews, share, wishes, on_progress, warn, on_failure)
        finally:
            crews.dismiss()


def until_done(
    request: RunRequest,
    crews: "Crews",
    share: Share,
    wishes: Wishes,
    on_progress: Callable[[Progress], None],
    warn: Callable[[str], None],
    on_failure: Callable[[Mapping[str, str]], None],
) -> Outcome:
    """Tries until the run has ended, or trying again would be in vain. Raises as `launch` does."""
    from ditlab.cluster.workers.attempt import Attempt
    from ditlab.cluster.workers.group import Shape

    experiment, store = request.experiment(), request.checkpoints()
    shape = Shape(experiment.resources, share)
    recovery, number, saved = Recovery(experiment), 0, -1
    before: Kind | None = None
    tags: Mapping[str, str] = {}
    while True:
        ended = Attempt(request, crews.ready(shape), crews.keep, on_progress, warn).run(wishes)
        if isinstance(ended, Outcome):
            return ended
        if ended.kind is not Kind.NO_ROOM:  # to wait is no failure
            number += 1
            tags = ended.tags(number)
            on_failure(tags)
        with suppress(Unreachable):  # what is not known is taken for no progress
            saved = store.last_step()
        recovery = recovery.after(ended, saved)
        if wishes.count:  # before it could save, or between two tries
            last = store.location_of(saved) if saved >= 0 else None
            return Outcome("interrupted", max(saved, 0), {}, last)
        if not (ended.kind is Kind.NO_ROOM and before is Kind.NO_ROOM):  # said once, however long it takes
            warn(recovery.sentence(ended))
        before = ended.kind
        # With its tags, where the first worker died before it could keep a journal.
        request = replace(request, resumed=True, room=recovery.room, tags={**request.tags, **tags})


def is_connected() -> bool:
    """Whether this process is connected to a cluster, without importing Ray to find out."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@contextmanager
def connected(experiment: Experiment, address: str | None, warn: Callable[[str], None]) -> Iterator[None]:
    """Inside: connected to the cluster at `address`, which can hold the run, and whose nodes agree on what it needs.
    Does nothing where `address` is None.

    Raises UserError before anything of the run exists.
    """
    if address is None:
        yield
        return
    with ray_session(address, 0):
        from ditlab.cluster.autoscaling import possible_growth
        from ditlab.cluster.nodes.membership import alive_nodes
        from ditlab.cluster.nodes.survey import check_nodes

        nodes = [node["Resources"] for node in alive_nodes()]
        check_capacity(experiment, nodes, growth=possible_growth(nodes))
        check_nodes(experiment, warn)
        yield
