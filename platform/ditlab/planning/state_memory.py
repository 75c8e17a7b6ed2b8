"""Memory of a run's state on one worker: weights, gradients, optimiser, average, and what ZeRO adds to them.

As DeepSpeed 0.19 holds them, read from its code and counted tensor by tensor (tests/ditlab/planning). P parameters, N
workers; compute dtype: that of forward and backward passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ditlab.spec.engine import LARGEST_BUCKET

MASTER = 4
"""Bytes of a master weight, a moment and an averaged weight: float32 always."""
KEPT_GATHERED = 100_000
"""Values below which ZeRO-3 keeps a parameter whole once it was used (DeepSpeed's param_persistence_threshold)."""
MOST_GATHERED = 1_000_000_000
"""Values that ZeRO-3 keeps whole between forward and backward pass (its max_reuse_distance)."""
PREFETCHED = 50_000_000
"""Values that ZeRO-3 gathers at once, ahead of their use (its prefetch_bucket_size)."""
SUB_GROUP = 1_000_000_000
"""Values that ZeRO-3 updates at once (its sub_group_size)."""
SWAP_BUFFERS = 4
"""Sub-groups of state that are in host memory at once where they are kept in files."""

Stage = Literal[0, 1, 2, 3]
Offload = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True)
class ZeroSetting:
    """Where the state of a run is."""

    stage: Stage
    offload: Offload = "none"
    offload_parameters: Offload = "none"

    @property
    def label(self) -> str:
        """Short name for tables: `3 cpu`; `3 cpu all` where parameters are offloaded too."""
        names = [str(self.stage), "" if self.offload == "none" else self.offload]
        return " ".join(filter(None, [*names, "all" if self.offload_parameters != "none" else ""]))


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that the optimiser updates alike."""

    sizes: Sequence[int]
    """Values of each parameter."""
    moments: int
    """Tensors of optimiser state of each, as large as it, in float32."""

    def share(self, stage: Stage, workers: int) -> int:
        """Return the values of one worker's partition, padding included; of all at stage 0."""
        if stage == 0:
            return sum(self.sizes)
        if stage == 3:
            return sum(math.ceil(size / workers) for size in self.sizes)
        # NCCL's alignment: each worker's part of a group's flat buffer has an even number of values
        return math.ceil(sum(self.sizes) / (2 * workers)) * 2


@dataclass(frozen=True)
class ParameterSizes:
    """Sizes of everything that is trained."""

    groups: Sequence[ParameterGroup]
    iterations: Sequence[int] = ()
    """Operations of the Newton-Schulz iterations of each matrix that Muon orthogonalises."""

    @property
    def total(self) -> int:
        """All values."""
        return sum(sum(group.sizes) for group in self.groups)

    @property
    def largest(self) -> int:
        """Values of the largest parameter."""
        return max(max(group.sizes) for group in self.groups)

    @property
    def small(self) -> int:
        """Values of parameters that ZeRO-3 keeps whole."""
        return sum(size for group in self.groups for size in group.sizes if size < KEPT_GATHERED)

    @property
    def orthogonalised(self) -> int:
        """Values of parameters with one moment: Muon's."""
        return sum(sum(group.sizes) for group in self.groups if group.moments == 1)

    @property
    def largest_orthogonalised(self) -> int:
        """Values of the largest parameter with one moment; 0 without any."""
        return max((max(group.sizes) for group in self.groups if group.moments == 1), default=0)

    def share(self, stage: Stage, workers: int) -> int:
        """Return the values of one worker's partitions, padding included; of all at stage 0."""
        return sum(group.share(stage, workers) for group in self.groups)

    def moment_bytes(self, stage: Stage, workers: int) -> int:
        """Return the bytes of one worker's moments."""
        return sum(MASTER * group.moments * group.share(stage, workers) for group in self.groups)


@dataclass(frozen=True)
class StateMemory:
    """Bytes of the state of one worker, between two steps."""

    parameters: int
    """Weights that the network computes with, on the device."""
    gradients: int
    """Gradients that are kept from step to step, on the device: ZeRO-3's partition."""
    optimizer: int
    """Master weights and moments, on the device."""
    average: int
    """Averages of the weights, on the device."""
    buffers: int
    """Buffers of the engine that are there always, on the device."""
    host_parameters: int
    host_gradients: int
    host_optimizer: int
    host_average: int
    host_buffers: int
    swapped: int
    """Bytes in files."""

    @property
    def device(self) -> int:
        """All on the device."""
        return self.parameters + self.gradients + self.optimizer + self.average + self.buffers

    @property
    def host(self) -> int:
        """All in host memory that is not the device's."""
        return self.host_parameters + self.host_gradients + self.host_optimizer + self.host_average + self.host_buffers


def state_memory(
    sizes: ParameterSizes, setting: ZeroSetting, workers: int, compute: int, num_averages: int, accumulates: bool
) -> StateMemory:
    """Return the state of one of `workers`; `compute`: bytes of a value of the compute dtype."""
    stage, share = setting.stage, sizes.share(setting.stage, workers)
    bucket = compute * min(sizes.total, LARGEST_BUCKET)
    optimizer = sizes.moment_bytes(stage, workers) + (MASTER * share if stage else 0)
    average = MASTER * (share if stage else sizes.total) * num_averages
    weights = compute * (share if stage == 3 else sizes.share(stage, 1) if stage == 0 else share * workers)
    partition = compute * share if stage == 3 else 0
    kept_whole = compute * sizes.small if stage == 3 and workers > 1 else 0
    buffers = bucket + kept_whole if stage == 3 else 0
    if setting.offload == "none":
        return StateMemory(weights, partition, optimizer, average, buffers, 0, 0, 0, 0, 0, 0)
    # the CPU gets gradients in float32 and, at stages 1 and 2, the new weights in the compute dtype
    largest = compute * sizes.largest
    host_gradients = MASTER * share + partition
    if stage == 2 and accumulates:
        host_gradients += compute * share
    host_buffers = 0 if stage == 3 else compute * share + largest
    in_files = optimizer if setting.offload == "nvme" else 0
    if in_files:
        host_buffers += SWAP_BUFFERS * MASTER * min(share, SUB_GROUP)
    moved = weights if setting.offload_parameters != "none" else 0
    return StateMemory(
        parameters=weights - moved,
        gradients=0,
        optimizer=0,
        average=0,
        buffers=buffers if stage == 3 else largest,
        host_parameters=moved,
        host_gradients=host_gradients,
        host_optimizer=optimizer - in_files,
        host_average=average,
        host_buffers=host_buffers,
        swapped=in_files,
    )
