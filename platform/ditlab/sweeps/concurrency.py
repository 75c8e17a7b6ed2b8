"""How many trials train at once, and what each worker gets."""

from collections.abc import Sequence

from ditlab.cluster.capacity import Node, Share, check_capacity, runs_that_fit, worker_share
from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep.sweep import Pbt, Sweep


def find_room(sweep: Sweep, experiment: Experiment, nodes: Sequence[Node], trials: int) -> tuple[Share, int, str]:
    """(each worker's share, trials at once, a note where fewer fit than were asked for).

    Raises UserError where not one trial fits, or not the whole population.
    """
    together = isinstance(sweep.scheduler, Pbt)
    wanted = trials if together else sweep.concurrent or _as_many_as_cores(experiment, nodes)
    wanted = min(wanted, trials)
    check_capacity(experiment, nodes, worker_share(experiment, nodes, wanted))
    fit = next(num for num in range(wanted, 0, -1) if num == 1 or _fits(experiment, nodes, num))
    share = worker_share(experiment, nodes, fit)
    if fit == wanted:
        return share, fit, ""
    if together:
        raise UserError(
            f"scheduler.kind=pbt trains all of trials={trials} at once, and {fit} of them fit; lower trials, or "
            "resources.cpus_per_worker or resources.gpus_per_worker under `fixed`."
        )
    note = f"concurrent={sweep.concurrent} trials do not fit at once: {fit} of them do." if sweep.concurrent else ""
    return share, fit, note


def _as_many_as_cores(experiment: Experiment, nodes: Sequence[Node]) -> int:
    """Runs that fit at a core for each worker, or what the spec says."""
    alone = worker_share(experiment, nodes) if experiment.resources.cpus_per_worker else Share(1, 1.0)
    return max(1, runs_that_fit(experiment, alone, nodes))


def _fits(experiment: Experiment, nodes: Sequence[Node], num: int) -> bool:
    return runs_that_fit(experiment, worker_share(experiment, nodes, num), nodes) >= num
