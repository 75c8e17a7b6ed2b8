"""The plan of a run: memory and time by ZeRO setting, length, cost, and the setting to take."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ditlab.averages import snapshot_steps
from ditlab.inputs.flops import StepFlops, step_flops
from ditlab.inputs.meta_step import DTYPES, DataShape
from ditlab.spec.compiling import compile_decision
from ditlab.spec.experiment import Experiment
from ditlab.spec.values import format_bytes
from ditlab_addons.plan.frozen_encoders import EncoderWork
from ditlab_addons.plan.hardware import Device
from ditlab_addons.plan.pass_memory import pass_memory
from ditlab_addons.plan.step_time import Rates, StepSeconds, step_seconds
from ditlab_addons.plan.worker_memory import (
    ParameterSizes,
    WorkerMemory,
    ZeroSetting,
    saved_bytes,
    setting_memory,
)

SETTINGS = (
    ZeroSetting(0),
    ZeroSetting(1),
    ZeroSetting(2),
    ZeroSetting(3),
    ZeroSetting(1, "cpu"),
    ZeroSetting(2, "cpu"),
    ZeroSetting(3, "cpu"),
    ZeroSetting(3, "cpu", "cpu"),
)
"""Settings that are compared, the plainest first."""
GPU_MARGIN = 2**30
CPU_MARGIN = 600 * 2**20
"""Bytes that are left free on each GPU for CUDA's context, cuBLAS and NCCL, and for each process on
a CPU for Python and its libraries."""
GPU_GAPS = 0.05
CPU_GAPS = 0.35
"""Share of the tensors' bytes that is left free for gaps between them: resident memory of a step of
digits/dit grew by 1.25 (compiled) to 1.33 times their bytes on a CPU, where glibc keeps what is
freed in its heap."""
SLOWER = 1.03
"""Ratio of step times up to which a spec's own setting, or a plainer one, is preferred to a faster
one.
"""


@dataclass(frozen=True)
class PlannedSetting:
    """One setting on the machine."""

    zero: ZeroSetting
    checkpointing: bool
    micro: int
    """Samples of a micro-batch."""
    largest_micro: int
    """Largest micro-batch that fits, a divisor of a worker's part of the batch; 0 where none
    does.
    """
    memory: WorkerMemory
    margin: int
    """Bytes that are left free beside the tensors."""
    total: int
    """Bytes of each worker's device: the peak's and the margin, on a CPU with all that is the
    host's.
    """
    fits: bool
    seconds: StepSeconds
    flops: StepFlops
    """The network's, of all workers."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a spec that set it, by dotted path."""
        return {
            "engine.zero.stage": self.zero.stage,
            "engine.zero.offload": self.zero.offload,
            "engine.zero.offload_parameters": self.zero.offload_parameters,
            "engine.activation_checkpointing": self.checkpointing,
            "batch.micro": self.micro,
        }

    @property
    def label(self) -> str:
        """Short name for people: `stage 1`, `stage 3 cpu, checkpointing`."""
        return f"stage {self.zero}{', checkpointing' if self.checkpointing else ''}"


class Planner:
    """Memory and time of an experiment's settings on a device, traced as far as they are asked
    for.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: DataShape,
        device: Device,
        rates: Rates,
        encoders: EncoderWork,
    ) -> None:
        """Raises ValueError for a loss that does not fit its model."""
        self._experiment = experiment
        self.data = data
        self.encoders = encoders
        self.device = device
        self.rates = rates
        self.sizes = ParameterSizes.of_experiment(experiment, data)
        engines = (
            experiment.engine.model_copy(update={"activation_checkpointing": on})
            for on in (False, True)
        )
        self._with_checkpointing = [
            experiment.model_copy(update={"engine": engine}) for engine in engines
        ]
        self.workers = experiment.resources.max_workers
        self.encoder_flops = encoders.flops * experiment.batch.size
        """Operations of frozen encoders in a step, over all workers."""
        whole = experiment.batch.size // self.workers
        own = {experiment.micro_size}
        self.micro_sizes = sorted({each for each in range(1, whole + 1) if whole % each == 0} | own)

    def own(self) -> PlannedSetting:
        """Plan the spec as it is."""
        engine = self._experiment.engine
        zero = ZeroSetting(engine.zero.stage, engine.zero.offload, engine.zero.offload_parameters)
        return self.setting(zero, engine.activation_checkpointing, self._experiment.micro_size)

    def forms(self) -> Iterator[tuple[ZeroSetting, bool]]:
        """Yield the settings that the spec may have, each without and with activation
        checkpointing.
        """
        for zero in SETTINGS:
            if not zero.offloads or self._experiment.optimizer.takes_offload:
                yield from ((zero, False), (zero, True))

    def settings(self) -> Iterator[PlannedSetting]:
        """Plan every setting at the experiment's micro-batch, or at the largest smaller one that
        fits.
        """
        for zero, checkpointing in self.forms():
            if zero.stage == 0 and self._experiment.training.precision != "fp32":
                continue  # which has no master weights
            found = self.setting(zero, checkpointing, self._experiment.micro_size)
            if not found.fits and found.largest_micro:
                found = self.setting(zero, checkpointing, found.largest_micro)
            yield found

    def setting(self, zero: ZeroSetting, checkpointing: bool, micro: int) -> PlannedSetting:
        """Plan one setting at a micro-batch of so many samples."""
        experiment = self._with_checkpointing[checkpointing]
        memory, margin, total = self.memory(zero, checkpointing, micro)
        batch = experiment.batch.model_copy(update={"micro": micro})
        flops = step_flops(experiment.model_copy(update={"batch": batch}), self.data)
        seconds = step_seconds(
            flops,
            self.sizes,
            zero,
            self.device,
            self.rates,
            self.workers,
            max(1, experiment.batch.size // (micro * self.workers)),
            DTYPES[experiment.training.precision].itemsize,
            pass_memory(experiment, self.data, micro, self.device.is_gpu),
            self.encoder_flops,
        )

        def exceeds(index: int) -> bool:  # more samples never take less
            return self.memory(zero, checkpointing, self.micro_sizes[index])[2] > self.device.memory

        fitting = bisect_left(range(len(self.micro_sizes)), True, key=exceeds)
        largest = self.micro_sizes[fitting - 1] if fitting else 0
        return PlannedSetting(
            zero,
            checkpointing,
            micro,
            largest,
            memory,
            margin,
            total,
            total <= self.device.memory,
            seconds,
            flops,
        )

    def left_out(self) -> list[str]:
        """Return what the plan does not count, each as the end of `left out: `."""
        engine = self._experiment.engine
        is_gpu = self.device.is_gpu
        found = [*self.encoders.left_out, "memory within a kernel"]
        if compile_decision(self._experiment, "cuda" if is_gpu else "cpu").is_compiled:
            saved = "memory" if self.rates.is_measured else "memory and time"
            found.append(f"what compiled blocks save in {saved}, and the first step's compilation")
        if is_gpu and engine.activation_offload == "cpu":
            found.append("what of the activations' ways to the host and back the passes hide")
        return found

    def memory(
        self, zero: ZeroSetting, checkpointing: bool, micro: int
    ) -> tuple[WorkerMemory, int, int]:
        """Return memory, margin and total of one worker's device."""
        experiment = self._with_checkpointing[checkpointing]
        is_gpu = self.device.is_gpu
        passes = pass_memory(experiment, self.data, micro, is_gpu)
        memory = setting_memory(
            experiment, self.data, zero, micro, is_gpu, self.sizes, passes, self.encoders
        )
        peak = memory.peak.total + (0 if is_gpu else memory.host)
        free, gaps = (GPU_MARGIN, GPU_GAPS) if is_gpu else (CPU_MARGIN, CPU_GAPS)
        margin = free + int(gaps * peak)
        return memory, margin, peak + margin


@dataclass(frozen=True)
class Plan:
    """Memory, time and cost of a run on a kind of device."""

    experiment: Experiment
    device: Device
    rates: Rates
    parameters: int
    frozen: int
    """Parameters among them that are not trained."""
    own: PlannedSetting
    """The spec as it is."""
    settings: Sequence[PlannedSetting]
    """Every setting, with and without activation checkpointing."""
    recommended: PlannedSetting | None
    """Setting to take; None where nothing fits."""
    why: str
    """Reason for it in a sentence, or what would make the run fit."""
    steps: int | None
    """Optimiser steps; None where they depend on data that are not here."""
    data_bytes: int | None
    """Bytes of the training store; None where it is not here."""
    checkpoint_bytes: int
    """Bytes of one checkpoint."""
    checkpoints: int
    """Checkpoints that are kept at once."""
    snapshot_bytes: int
    """Bytes of one snapshot of averages; 0 where none are kept."""
    snapshots: int | None
    """Snapshots of averages, all kept; None for a run of unknown length."""
    encoder_flops: int
    """Operations of frozen encoders in a step."""
    optimizer_flops: int
    """Operations of Muon's iterations in a step; 0 for AdamW."""
    left_out: Sequence[str]
    """Parts that are not counted, each as the end of a sentence."""

    @property
    def workers(self) -> int:
        """Workers, one a GPU."""
        return self.experiment.resources.max_workers

    @property
    def changes(self) -> dict[str, Any]:
        """Fields in which the recommended setting differs from the spec, by dotted path."""
        if self.recommended is None:
            return {}
        own = self.own.fields()
        return {
            path: value for path, value in self.recommended.fields().items() if value != own[path]
        }

    def run_seconds(self, setting: PlannedSetting) -> float | None:
        """Return the duration of all steps under a setting, without evaluations and saves."""
        if self.steps is None:
            return None
        return self.steps * setting.seconds.total

    def gpu_hours(self, setting: PlannedSetting) -> float | None:
        """Return the hours of all workers together."""
        seconds = self.run_seconds(setting)
        if seconds is None:
            return None
        return seconds * self.workers / 3600

    def device_hours(self, setting: PlannedSetting) -> float | None:
        """Return the hours of all GPUs or cores together, which a budget counts."""
        hours = self.gpu_hours(setting)
        if hours is None or self.device.is_gpu:
            return hours
        return hours * planned_cores(self.experiment, self.workers)


def planned_cores(experiment: Experiment, workers: int) -> int:
    """Number of cores of each worker on this machine, where a run has no GPUs."""
    return experiment.resources.cpus_per_worker or max(1, (os.cpu_count() or 1) // workers)


def make_plan(
    planner: Planner, experiment: Experiment, steps: int | None, data_bytes: int | None
) -> Plan:
    """Plan all settings and choose one."""
    own = planner.own()
    settings = tuple(planner.settings())
    sizes = planner.sizes
    averages = experiment.training.averages
    keep_every = experiment.checkpoint.keep_every
    checkpoint, snapshot = saved_bytes(experiment, sizes)
    snapshots: int | None = 0
    if averages:
        snapshots = len(snapshot_steps(0, steps, averages.snapshots)) if steps else None
    return Plan(
        experiment,
        planner.device,
        planner.rates,
        sizes.total + sizes.frozen,
        sizes.frozen,
        own,
        settings,
        *choose(own, settings, planner),
        steps,
        data_bytes,
        checkpoint,
        experiment.checkpoint.keep + ((steps or 0) // keep_every if keep_every else 0),
        snapshot,
        snapshots,
        planner.encoder_flops,
        sum(sizes.iterations),
        planner.left_out(),
    )


def choose(
    own: PlannedSetting, settings: Sequence[PlannedSetting], planner: Planner
) -> tuple[PlannedSetting | None, str]:
    """Choose the fastest setting that fits, the spec's own or a plainer one where it is about as
    fast; and say why.
    """
    fitting = [each for each in settings if each.fits]
    if not fitting:
        return None, what_would_fit(planner)
    fastest = min(fitting, key=lambda each: each.seconds.total)
    limit = fastest.seconds.total * SLOWER
    if own.fits and own.seconds.total <= limit:
        return (
            own,
            f"the spec's own setting fits, and no other is more than {SLOWER - 1:.0%} faster.",
        )
    best = next(each for each in fitting if each.seconds.total <= limit)
    reason = (
        f"it is {own.seconds.total / best.seconds.total - 1:.0%} faster than the spec's own "
        f"({own.label})."
    )
    if not own.fits:
        reason = (
            f"the spec's own setting ({own.label}) does not fit, and of the fastest that do "
            "this is the plainest."
        )
    if best.micro != own.micro:
        reason += " Other micro-batches draw other random numbers."
    return best, reason


def what_would_fit(planner: Planner) -> str:
    """Describe the least memory that the run takes on so many workers, and what would make it
    fit.
    """
    smallest = planner.micro_sizes[0]
    sizes = {
        f"stage {zero}{', checkpointing' if on else ''}": planner.memory(zero, on, smallest)[2]
        for zero, on in planner.forms()
        if zero.stage
    }
    label, least = min(sizes.items(), key=lambda pair: pair[1])
    return (
        f"nothing fits: with micro-batches of {smallest} the least is {format_bytes(least)} a "
        f"worker ({label}), and {format_bytes(planner.device.memory)} are there; it would fit "
        "with a larger GPU (--gpu), perhaps with more of them (--gpus), or with a smaller "
        "network, smaller images or shorter sequences."
    )
