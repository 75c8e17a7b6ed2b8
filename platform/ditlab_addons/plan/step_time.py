"""Seconds of a step, from operations and bytes and the rates at which a device does them.

Passes, reduction and update are added up: what overlaps makes a step faster than said here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ditlab.inputs.flops import StepFlops
from ditlab_addons.plan.hardware import Device
from ditlab_addons.plan.pass_memory import PassMemory
from ditlab_addons.plan.worker_memory import ParameterSizes, ZeroSetting

UTILISATION = {"fp32": 0.6, "bf16": 0.4, "fp16": 0.4}
"""Share of the peak rate that passes are assumed to reach, for networks of 100 million parameters
and more with micro-batches that fill a GPU; small ones reach less."""
OPERATION = 8e-6
"""Seconds that a GPU takes for an operation at least: Python and launch. Of small networks they are
all the time.
"""
GPUS_A_MACHINE = 8
NETWORK = 25e9
"""Bytes a second of each GPU to other machines: 200 Gbit/s."""
HOST_UPDATE = 10e9
"""Bytes a second at which one worker's CPU updates offloaded state."""
UPDATE_BYTES = 32
"""Bytes that an update reads and writes for a value: gradient, master, two moments, average,
weight.
"""


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of one optimiser step on one worker."""

    passes: float
    """Forward and backward passes, with recomputation, frozen encoders, and activations' ways to
    the host and back.
    """
    reduction: float
    """Sums of gradients over workers, and gathered parameters."""
    update: float
    """Optimiser's update and average, with Muon's iterations, and transfers where state is
    offloaded.
    """

    @property
    def total(self) -> float:
        """Seconds of all three."""
        return self.passes + self.reduction + self.update


@dataclass(frozen=True)
class Rates:
    """Rates of passes and update on one device."""

    flops: float
    """Operations a second of the passes."""
    update: float
    """Bytes a second of the update."""
    source: str
    """Origin of the rates, for people."""
    is_measured: bool = False


def assumed_rates(device: Device, precision: str) -> Rates:
    """Return the rates that a device's data sheet and an assumed utilisation give."""
    share = UTILISATION[precision]
    source = (
        f"{share:.0%} of {device.name}'s {device.peak(precision) / 1e12:,.3g} TFLOP/s "
        f"({precision}), assumed"
    )
    return Rates(device.peak(precision) * share, device.bandwidth * 0.7, source)


def step_seconds(
    flops: StepFlops,
    sizes: ParameterSizes,
    setting: ZeroSetting,
    device: Device,
    rates: Rates,
    workers: int,
    accumulation: int,
    compute: int,
    memory: PassMemory,
    encoder_flops: int = 0,
) -> StepSeconds:
    """Return the time of a step of `accumulation` micro-batches, whose passes are `memory`'s, on
    each of `workers`. `encoder_flops`: operations of frozen encoders in a step, over all workers.
    """
    share = sizes.share(setting.stage, workers)
    passes = (flops.hardware + encoder_flops) / workers / rates.flops
    if device.is_gpu and not rates.is_measured:
        passes = max(passes, OPERATION * memory.operations * accumulation)
        # there and back, as if nothing overlapped
        passes += 2 * memory.moved * accumulation / device.host_link
    # Bytes that a worker sends: rings of all-reduce, or reduce-scatter and all-gather. Stage 3
    # gathers for both passes and scatters once, in every micro-batch.
    sent = {3: 3 * accumulation, 2: accumulation + 1}.get(setting.stage, 2) * compute * sizes.total
    link = device.link
    if workers > GPUS_A_MACHINE and device.is_gpu:
        link = min(link, NETWORK)
    reduction = sent * (workers - 1) / workers / link
    update_rate = rates.update
    if setting.offloads:
        update_rate = HOST_UPDATE if device.is_gpu else min(HOST_UPDATE, rates.update)
    update = UPDATE_BYTES * share / update_rate
    if setting.offloads and device.is_gpu:
        update += 2 * compute * share / device.host_link
    if sizes.iterations and not rates.is_measured:  # a measured update has them in its rate
        update += max(max(sizes.iterations), sum(sizes.iterations) / workers) / rates.flops
    if setting.offloads_parameters and device.is_gpu:
        reduction += 2 * accumulation * compute * sizes.total / workers / device.host_link
    return StepSeconds(passes, reduction, update)
