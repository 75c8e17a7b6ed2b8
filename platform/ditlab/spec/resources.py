"""Resources of a run: workers, GPUs, CPU cores, and the network between workers."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from ditlab.spec.optimization import Count
from ditlab_models.contract import PositiveFloat, Share, Spec


class WorkerNetwork(Spec):
    """Network between the workers. Variables of NCCL and gloo, such as NCCL_SOCKET_IFNAME, are set
    in the environment that the nodes are started in."""

    timeout: Annotated[int, Field(gt=0, le=10**6)] | None = None
    """Seconds that a collective waits for the other workers; then the run goes on from its last
    checkpoint (`lost_worker`). Null: 1800, or twice `resources.hang_timeout` where that is longer.
    While workers train or evaluate, `resources.hang_timeout` comes first, as it must be shorter,
    and names the worker that hangs; this one bounds what it leaves alone: building, loading,
    saving."""


class ElasticWorkers(Spec):
    """A range of workers, grown and shrunk with the cluster. The batch and every random draw stay
    the same.
    """

    min: Count
    """Fewest workers to go on with."""
    max: Count
    """Most workers to use. Each needs a micro-batch of its own: at most batch.size /
    batch.micro.
    """
    interval: PositiveFloat = 60.0
    """Seconds between two checks for room for more workers; taking them in goes back to the last
    checkpoint.
    """

    @model_validator(mode="after")
    def _is_a_range(self) -> ElasticWorkers:
        if self.min > self.max:
            raise ValueError(
                f"resources.workers={{min: {self.min}, max: {self.max}}} is no range; "
                f"write {{min: {self.max}, max: {self.min}}}, or a number."
            )
        return self


class Resources(Spec):
    """Workers of a run, their devices, and the treatment of their failures."""

    workers: Count | ElasticWorkers = 1
    """Training processes, each with its share of every batch; `{min: 2, max: 8}` follows the size
    of the cluster.
    """
    gpus_per_worker: Share = 0.0
    """GPUs of each worker: 1 trains on CUDA, 0 on the CPU. A part of one (0.25) lets runs of one
    worker, such as a sweep's trials, share a GPU and its memory."""
    cpus_per_worker: Count | None = None
    """CPU cores, and threads, of each worker. Null: a share of the cores that a run may use (its
    affinity mask, its control group) and that other processes do not keep busy as it starts, at
    most OMP_NUM_THREADS. Runs on the CPU have the same bits under the same number of threads, so a
    resumed run, and all trials of a sweep, keep the first one."""
    max_failures: Annotated[int, Field(ge=0, le=10**6)] = 3
    """Lost workers, lost nodes and hung workers in a row, without a new checkpoint between them,
    after which the run goes on from its last checkpoint by itself; one more ends it. Pre-emptions
    do not count; mistakes are not retried."""
    hang_timeout: Annotated[float, Field(gt=0, le=10**6)] = 600.0
    """Seconds without progress after which a worker counts as hung, is named and replaced."""
    network: WorkerNetwork = WorkerNetwork()
    """Network between the workers."""

    @model_validator(mode="after")
    def _fits_together(self) -> Resources:
        timeout = self.network.timeout
        hang = self.hang_timeout
        # a collective that gave up first could not say whom it waited for
        if timeout is not None and timeout <= hang:
            raise ValueError(
                f"resources.network.timeout={timeout} is not longer than "
                f"resources.hang_timeout={hang:g}, whose watch names the worker that hangs; "
                f"set resources.network.timeout above {hang:g}, or resources.hang_timeout "
                f"below {timeout}."
            )
        # NCCL wants a GPU for each worker of a run
        if 0 < self.gpus_per_worker < 1 and self.max_workers > 1:
            raise ValueError(
                f"resources.gpus_per_worker={self.gpus_per_worker:g} shares a GPU, and workers "
                "of one run need one each; set resources.workers to 1, or "
                "resources.gpus_per_worker to 1."
            )
        return self

    @property
    def collective_timeout(self) -> int:
        """Seconds that a collective waits for the other workers."""
        return self.network.timeout or max(1800, math.ceil(2 * self.hang_timeout))

    @property
    def min_workers(self) -> int:
        """Fewest workers to go on with."""
        if isinstance(self.workers, int):
            return self.workers
        return self.workers.min

    @property
    def max_workers(self) -> int:
        """Most workers to use."""
        if isinstance(self.workers, int):
            return self.workers
        return self.workers.max
