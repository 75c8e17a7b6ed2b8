"""Memory and time of an experiment under every ZeRO setting, traced as far as they are asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from denoisers.parameters import parameter_roles
from ditlab.planning.flops import StepFlops, newton_schulz_flops, step_flops
from ditlab.planning.frozen_encoders import NO_ENCODERS, EncoderWork
from ditlab.planning.hardware import Device
from ditlab.planning.meta_step import DTYPES, DataShape, MetaStep
from ditlab.planning.pass_memory import PassMemory, evaluation_memory, pass_memory
from ditlab.planning.step_time import Rates, StepSeconds, step_seconds
from ditlab.planning.worker_memory import (
    MASTER,
    MemoryParts,
    ParameterGroup,
    ParameterSizes,
    StateMemory,
    WorkerMemory,
    WorkerShape,
    ZeroSetting,
    evaluation_peak,
    larger_parts,
    passes_peak,
    peak_during,
    state_memory,
    update_peak,
)
from ditlab.spec.compiling import compile_decision
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import GroupRates

SETTINGS = (
    ZeroSetting(0), ZeroSetting(1), ZeroSetting(2), ZeroSetting(3),
    ZeroSetting(1, "cpu"), ZeroSetting(2, "cpu"), ZeroSetting(3, "cpu"), ZeroSetting(3, "cpu", "cpu"),
    ZeroSetting(3, "nvme", "cpu"),
)  # fmt: skip
"""Settings that are compared, the plainest first."""
GPU_MARGIN, CPU_MARGIN = 2**30, 600 * 2**20
"""Bytes that are left free on each GPU for CUDA's context, cuBLAS and NCCL, and for each process on a CPU for Python
and its libraries."""
FARTHEST = 4
"""Largest micro-batch that is traced beside the spec's own, as its multiple."""
GPU_GAPS, CPU_GAPS = 0.05, 0.3
"""Share of the tensors' bytes that is left free for gaps between them: resident memory of a step of digits/dit grew by
1.25 (compiled) to 1.33 times their bytes on a CPU, where glibc keeps what is freed in its heap."""


@dataclass(frozen=True)
class PlannedSetting:
    """One setting on the machine."""

    zero: ZeroSetting
    checkpointing: bool
    micro: int
    """Samples of a micro-batch."""
    largest_micro: int
    """Largest micro-batch that fits, a divisor of a worker's part of the batch; 0 where none does."""
    memory: WorkerMemory
    margin: int
    """Bytes that are left free beside the tensors."""
    total: int
    """Bytes of each worker's device: the peak's and the margin, on a CPU with all that is the host's."""
    fits: bool
    seconds: StepSeconds
    flops: StepFlops
    """The network's, of all workers."""

    @property
    def label(self) -> str:
        """Short name for people: `stage 1`, `stage 3 cpu, checkpointing`."""
        return f"stage {self.zero.label}{', checkpointing' if self.checkpointing else ''}"


class Planner:
    """Memory and time of an experiment's settings on a device, traced as far as they are asked for."""

    def __init__(
        self, experiment: Experiment, data: DataShape, device: Device, rates: Rates, encoders: EncoderWork = NO_ENCODERS
    ) -> None:
        """Raises ValueError for a loss that does not fit its model."""
        self._experiment, self._data, self._encoders = experiment, data, encoders
        self.device, self.rates = device, rates
        self.sizes: ParameterSizes = parameter_sizes(experiment, data)
        self.offloads = experiment.optimizer.kind != "muon"  # which is refused with offload
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

    def settings(self) -> Iterator[PlannedSetting]:
        """Plan every setting at the experiment's micro-batch, or at the largest smaller one that fits."""
        half = self._experiment.training.precision != "fp32"
        for zero in SETTINGS:
            if zero.stage == 0 and half:
                continue  # which has no master weights
            if zero.offload != "none" and not self.offloads:
                continue
            for checkpointing in (False, True):
                found = self.setting(zero, checkpointing, self._experiment.micro_size)
                if not found.fits and found.largest_micro:
                    found = self.setting(zero, checkpointing, found.largest_micro)
                yield found

    def setting(self, zero: ZeroSetting, checkpointing: bool, micro: int) -> PlannedSetting:
        """Plan one setting at a micro-batch of so many samples."""
        experiment = self._with(checkpointing)
        memory, margin, total = self._memory(zero, checkpointing, micro)
        batch = experiment.batch.model_copy(update={"micro": micro})
        flops = step_flops(experiment.model_copy(update={"batch": batch}), self._data)
        seconds = step_seconds(
            flops, self.sizes, zero, self.device, self.rates, self.workers,
            max(1, experiment.batch.size // (micro * self.workers)),
            DTYPES[experiment.training.precision].itemsize, self._passes(experiment, micro), self.encoder_flops,
        )  # fmt: skip
        largest = self._largest_micro(zero, checkpointing)
        return PlannedSetting(
            zero, checkpointing, micro, largest, memory, margin, total, total <= self.device.memory, seconds, flops
        )

    def with_workers(self, workers: int) -> Planner:
        """Return a planner of the same run on more workers, whose micro-batches are of one sample."""
        resources = self._experiment.resources.model_copy(update={"workers": workers})
        batch = self._experiment.batch.model_copy(update={"micro": 1})
        changed = self._experiment.model_copy(update={"resources": resources, "batch": batch})
        return Planner(changed, self._data, self.device, self.rates, self._encoders)

    def least_total(self, zero: ZeroSetting, checkpointing: bool) -> int:
        """Return the bytes of each worker's device at the smallest micro-batch."""
        return self._memory(zero, checkpointing, self.micro_sizes[0])[2]

    def left_out(self) -> list[str]:
        """Return what the plan does not count, each as the end of `left out: `."""
        engine, is_gpu = self._experiment.engine, self.device.is_gpu
        found = [*self._encoders.left_out, "memory within a kernel"]
        if compile_decision(self._experiment, "cuda" if is_gpu else "cpu").is_compiled:
            saved = "memory" if self.rates.is_measured else "memory and time"
            found.append(f"what compiled blocks save in {saved}, and the first step's compilation")
        if is_gpu and engine.activation_offload == "cpu":
            found.append("what of the activations' ways to the host and back the passes hide")
        return found

    def _largest_micro(self, zero: ZeroSetting, checkpointing: bool) -> int:
        """Find the largest micro-batch that fits by bisection: more samples never take less."""

        def exceeds(index: int) -> bool:
            return self._memory(zero, checkpointing, self.micro_sizes[index])[2] > self.device.memory

        own, num = self.micro_sizes.index(self._experiment.micro_size), len(self.micro_sizes)
        fitting = bisect_left(range(num), True, *((0, own) if exceeds(own) else (own + 1, num)), key=exceeds)
        return self.micro_sizes[fitting - 1] if fitting else 0

    def _memory(self, zero: ZeroSetting, checkpointing: bool, micro: int) -> tuple[WorkerMemory, int, int]:
        """Return memory, margin and total of one worker's device."""
        experiment, is_gpu = self._with(checkpointing), self.device.is_gpu
        passes = self._passes(experiment, micro)
        memory = setting_memory(experiment, self._data, zero, micro, is_gpu, self.sizes, passes, self._encoders)
        peak = memory.peak.total + (0 if is_gpu else memory.host)
        free, gaps = (GPU_MARGIN, GPU_GAPS) if is_gpu else (CPU_MARGIN, CPU_GAPS)
        margin = free + int(gaps * peak)
        return memory, margin, peak + margin

    def _passes(self, experiment: Experiment, micro: int) -> PassMemory:
        """Return the memory of a micro-batch's passes: traced, or for those above the spec's own on a line.

        The line goes through its own and the next sizes up to FARTHEST times as large. Memory is a maximum of straight
        lines, so that nothing between the two takes more.
        """
        own, is_gpu = experiment.micro_size, self.device.is_gpu
        if micro <= own:
            return pass_memory(experiment, self._data, micro, is_gpu)
        above = [each for each in self.micro_sizes if each > own]
        far = max((each for each in above if each <= FARTHEST * own), default=above[0])
        near, end = (pass_memory(experiment, self._data, size, is_gpu) for size in (own, far))
        return near.between(end, (micro - own) / (far - own))

    def _with(self, checkpointing: bool) -> Experiment:
        engine = self._experiment.engine.model_copy(update={"activation_checkpointing": checkpointing})
        return self._experiment.model_copy(update={"engine": engine})


def parameter_sizes(experiment: Experiment, data: DataShape) -> ParameterSizes:
    """Return the sizes of everything that is trained, on the meta device."""
    step = MetaStep(experiment, data)
    groups: dict[GroupRates, list[int]] = {}
    iterations: list[int] = []
    for module in step.modules():
        roles = parameter_roles(module)
        for name, parameter in module.named_parameters():
            rates = experiment.optimizer.rates(roles[name].role)
            groups.setdefault(rates, []).append(parameter.numel())
            if rates.is_orthogonalised:
                iterations.append(newton_schulz_flops(tuple(parameter.shape), roles[name]))
    return ParameterSizes([ParameterGroup(sizes, len(rates.moments)) for rates, sizes in groups.items()], iterations)


def setting_memory(
    experiment: Experiment, data: DataShape, setting: ZeroSetting, micro: int, on_gpu: bool,
    sizes: ParameterSizes, passes: PassMemory, encoders: EncoderWork = NO_ENCODERS,
) -> WorkerMemory:  # fmt: skip
    """Return one worker's memory with micro-batches of `micro` samples, on `resources.max_workers` workers."""
    workers = experiment.resources.max_workers
    compute = DTYPES[experiment.training.precision].itemsize
    shape = WorkerShape(setting, workers, compute, experiment.batch.size > micro * workers, on_gpu)
    state = state_memory(sizes, shape, num_averages(experiment))
    copy = checkpoint_copy(experiment, sizes, setting)
    peaks = [
        passes_peak(sizes, state, passes, shape),
        update_peak(sizes, state, shape),
        _evaluation(experiment, data, sizes, state, micro, shape),
    ]
    host = state.host.total + copy + passes.host
    if encoders.weights:
        peaks[0] = larger_parts(peaks[0], peak_during(state, encoders.pass_bytes * encoders.at_once(micro, on_gpu)))
        peaks = [replace(parts, encoders=encoders.weights) for parts in peaks]
        host += encoders.host
    return WorkerMemory(*peaks, host, state, copy)


def num_averages(experiment: Experiment) -> int:
    """Return the number of averages of the weights that are kept while training."""
    training = experiment.training
    return (training.ema is not None) + (len(training.averages.lengths) if training.averages else 0)


def checkpoint_bytes(experiment: Experiment, sizes: ParameterSizes) -> int:
    """Return the size of one checkpoint: master weights, moments and averages, of all workers together."""
    return MASTER * sizes.total * (1 + num_averages(experiment)) + sizes.moment_bytes(0, 1)


def snapshot_bytes(experiment: Experiment, sizes: ParameterSizes) -> int:
    """Return the size of one snapshot of averages, of all workers together; 0 where none are kept."""
    averages = experiment.training.averages
    return MASTER * sizes.total * len(averages.lengths) if averages else 0


def checkpoint_copy(experiment: Experiment, sizes: ParameterSizes, setting: ZeroSetting) -> int:
    """Return the bytes of a worker's part of a checkpoint and of a snapshot, of which the writers keep copies."""
    if experiment.checkpoint.write == "blocking":
        return 0
    parts = experiment.resources.max_workers if setting.stage else 1  # at stage 0 the first worker has all of it
    return (checkpoint_bytes(experiment, sizes) + snapshot_bytes(experiment, sizes)) // parts


def _evaluation(
    experiment: Experiment, data: DataShape, sizes: ParameterSizes, state: StateMemory, micro: int, shape: WorkerShape,
) -> MemoryParts:  # fmt: skip
    """Return the peak of an evaluation: of held-out batches, or of the samples of the grid."""
    evaluation = experiment.evaluation
    if evaluation.every is None:
        return MemoryParts()
    guided = 2 if getattr(experiment.sampling, "guidance", 1.0) != 1.0 else 1
    drawn = max(evaluation.samples, micro if evaluation.quality else 0)
    pass_bytes = evaluation_memory(experiment, data, max(micro, guided * drawn))
    return evaluation_peak(sizes, state, pass_bytes, experiment.training.ema is not None, shape)
