"""Worker groups: Ray Train jobs whose workers train one run after another, so that the next run
starts warm.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.util.placement_group import PlacementGroup, remove_placement_group

from ditlab.cluster.capacity import CpuShare, has_autoscaler
from ditlab.cluster.channel import CHANNEL_ERRORS, KeyValueChannel
from ditlab.cluster.nodes import refresh_node_count
from ditlab.cluster.ray_internals import ray_internal
from ditlab.cluster.worker_entry import WorkerConfig, run_worker
from ditlab.home import Home
from ditlab.runs.launch import Launch
from ditlab.spec.resources import Resources

# Seconds that Ray Train waits for resources on a cluster that grows, not 60: a new instance is
# installed for ten minutes, and a request that is taken back would send it away again. An elastic
# run waits as long as it lasts anyway.
GROWING_START_TIMEOUT = "3600"
SHUTDOWN_TIMEOUT = 60.0  # seconds for idle workers to end


@dataclass(frozen=True)
class GroupSpec:
    """Resources of a worker group: runs with equal ones can follow each other in one group."""

    resources: Resources
    share: CpuShare


class WorkerGroup:
    """Workers of one Ray Train job, from the start of their processes to their end."""

    def __init__(self, spec: GroupSpec, storage: Path) -> None:
        self.spec = spec
        name = secrets.token_hex(4)  # a new one for each group: Ray Train must not restore by name
        self._channel = KeyValueChannel(f"workers-{name}")
        resources = spec.resources
        share = spec.share
        gpus = resources.gpus_per_worker
        timeout = resources.collective_timeout
        num: dict[str, Any] = {"num_workers": resources.max_workers}
        if not isinstance(resources.workers, int):
            num["num_workers"] = (resources.min_workers, resources.max_workers)
            num["elastic_resize_monitor_interval_s"] = resources.workers.interval
        elif has_autoscaler():
            os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", GROWING_START_TIMEOUT)
        per_worker = {"CPU": share.cpus}
        if gpus:
            per_worker["GPU"] = gpus
        config = {
            "channel": self._channel.name,
            "threads": share.threads,
            "gpus": gpus,
            "timeout": timeout,
        }
        home = str(Home.named_by_environment().root)
        self._trainer = TorchTrainer(
            run_worker,
            train_loop_config=config,
            torch_config=WorkerConfig(
                backend="nccl" if gpus else "gloo", timeout_s=timeout, home=home
            ),
            scaling_config=ScalingConfig(use_gpu=gpus > 0, resources_per_worker=per_worker, **num),
            run_config=RunConfig(
                name=name,
                storage_path=str(storage),
                # Ray itself retries nothing: `runs.failures` decides, counts and reports.
                failure_config=FailureConfig(
                    max_failures=0, max_preemption_failures=0, controller_failure_limit=0
                ),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
            ),
        )
        # In a thread, so that the main thread keeps the signals.
        self._thread = threading.Thread(target=self._fit, name="ray-train", daemon=True)
        self._num_assigned = 0
        self.error: BaseException | None = None
        """Exception that Ray Train raised when the workers ended."""

    def _fit(self) -> None:
        try:
            if not isinstance(self.spec.resources.workers, int):  # elastic
                with suppress(*CHANNEL_ERRORS):
                    refresh_node_count()
            self._trainer.fit()
        except BaseException as error:
            self.error = error

    def assign(self, launch: Launch, control: str, last: bool) -> None:
        """Make the workers train a run and report on the channel named `control`; after the last
        run they end.
        """
        self._num_assigned += 1
        assignment = {
            "number": self._num_assigned,
            "control": control,
            "launch": launch.to_dict(),
            "last": last,
        }
        self._channel.put("assignment", assignment)
        if self._num_assigned == 1:
            self._thread.start()

    def has_started(self) -> bool:
        """Return True if the workers have their resources, and one of them runs."""
        with suppress(*CHANNEL_ERRORS):
            return bool(self._channel.get("placement_group"))
        return True

    def has_ended(self, wait: float = 0.0) -> bool:
        """Return True if the workers are gone, or are within `wait` seconds."""
        self._thread.join(wait)
        return not self._thread.is_alive()

    def is_idle(self) -> bool:
        """Return True if the workers run, and have finished all that was assigned to them."""
        if not self._thread.is_alive():
            return False
        with suppress(*CHANNEL_ERRORS):
            return (self._channel.get("done") or 0) >= self._num_assigned
        return False

    def shut_down(self, timeout: float = SHUTDOWN_TIMEOUT) -> None:
        """End the workers once they are idle; after `timeout` seconds, release the placement group,
        killing them.
        """
        with suppress(*CHANNEL_ERRORS):
            if self._thread.is_alive():
                self._channel.put("assignment", {"number": self._num_assigned + 1, "is_end": True})
                if not self.has_started():
                    # no worker to wait for; workers that still start find that they shall end
                    return
                self._thread.join(timeout)
            if self._thread.is_alive():
                self.release_resources()
            self._channel.clear()

    def release_resources(self) -> None:
        """Release the placement group of workers whose leading process has died: Ray would keep it
        reserved.
        """
        group = self._channel.get("placement_group")
        if group:
            group_id = ray_internal("PlacementGroupID")(bytes.fromhex(group))
            remove_placement_group(PlacementGroup(group_id))


@dataclass
class WorkerPool:
    """At most one worker group at a time, kept from run to run where `keep` and its resources allow
    it.
    """

    storage: Path
    keep: bool
    _group: WorkerGroup | None = None

    def idle_group(self, spec: GroupSpec) -> WorkerGroup:
        """The current group if it is idle and has these resources, else a new one."""
        if self._group is None or self._group.spec != spec or not self._group.is_idle():
            self.shut_down()
            self._group = WorkerGroup(spec, self.storage)
        return self._group

    def shut_down(self, timeout: float = SHUTDOWN_TIMEOUT) -> None:
        """End the current group; workers that have not ended after `timeout` seconds are killed."""
        if self._group is not None:
            self._group.shut_down(timeout)
            self._group = None
