"""Memory and time of an experiment under every ZeRO setting, traced as far as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from denoisers.parameters import parameter_roles
from ditlab.planning.data_shape import DataShape
from ditlab.planning.flops import StepFlops, newton_schulz_flops, step_flops
from ditlab.planning.frozen_encoders import NO_ENCODERS, EncoderWork
from ditlab.planning.hardware import Device
from ditlab.planning.meta_step import DTYPES, MetaForm, MetaStep
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
    passes_peak,
    state_memory,
    update_peak,
    with_encoders,
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
_evaluated: dict[str, int] = {}


@dataclass(frozen=True)
class Machine:
    """Devices that a run is planned for."""

    device: Device
    memory: int
    """Bytes of each worker's device."""
    rates: Rates


@dataclass(frozen=True)
class PlannedSetting:
    """One setting on the machine."""

    zero: ZeroSetting
    checkpointing: bool
    micro: int
    """Samples of a micro-batch."""
    largest_micro: int
    """Largest micro-batch that fits, a divisor of a worker's part of the batch; 0 where none does."""
    memory: SettingMemory
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
    """Memory and time of an experiment's settings on a machine, traced as far as they are asked for."""

    def __init__(
        self, experiment: Experiment, data: DataShape, machine: Machine, encoders: EncoderWork = NO_ENCODERS
    ) -> None:
        """Raises ValueError for a loss that does not fit its model."""
        self._experiment, self._data, self.machine, self._encoders = experiment, data, machine, encoders
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
            flops, self.sizes, zero, self.machine.device, self.machine.rates, self.workers,
            max(1, experiment.batch.size // (micro * self.workers)),
            DTYPES[experiment.training.precision].itemsize, self._passes(experiment, micro), self.encoder_flops,
        )  # fmt: skip
        largest = self._largest_micro(zero, checkpointing)
        fits = total <= self.machine.memory
        return PlannedSetting(zero, checkpointing, micro, largest, memory, margin, total, fits, seconds, flops)

    def with_workers(self, workers: int) -> Planner:
        """Return a planner of the same run on more workers, whose micro-batches are of one sample."""
        resources = self._experiment.resources.model_copy(update={"workers": workers})
        batch = self._experiment.batch.model_copy(update={"micro": 1})
        changed = self._experiment.model_copy(update={"resources": resources, "batch": batch})
        return Planner(changed, self._data, self.machine, self._encoders)

    def least_total(self, zero: ZeroSetting, checkpointing: bool) -> int:
        """Return the bytes of each worker's device at the smallest micro-batch."""
        return self._memory(zero, checkpointing, self.micro_sizes[0])[2]

    def left_out(self) -> list[str]:
        """Return what the plan does not count, each as the end of `left out: `."""
        engine, is_gpu = self._experiment.engine, self.machine.device.is_gpu
        found = [*self._encoders.left_out, "memory within a kernel"]
        if compile_decision(self._experiment, "cuda" if is_gpu else "cpu").is_compiled:
            speed = "" if self.machine.rates.is_measured else ", and what compiled blocks save in time"
            found.append(f"the first step's compilation{speed}")
        if is_gpu and engine.activation_offload == "cpu":
            found.append("what of the activations' ways to the host and back the passes hide")
        return found

    def _largest_micro(self, zero: ZeroSetting, checkpointing: bool) -> int:
        """Find the largest micro-batch that fits by bisection: more samples never take less."""

        def fits(number: int) -> bool:
            return self._memory(zero, checkpointing, self.micro_sizes[number - 1])[2] <= self.machine.memory

        own = self.micro_sizes.index(self._experiment.micro_size) + 1
        low, high = (own, len(self.micro_sizes)) if fits(own) else (0, own - 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        return self.micro_sizes[low - 1] if low else 0

    def _memory(self, zero: ZeroSetting, checkpointing: bool, micro: int) -> tuple[SettingMemory, int, int]:
        """Return memory, margin and total of one worker's device."""
        experiment, device = self._with(checkpointing), self.machine.device
        passes = self._passes(experiment, micro)
        memory = setting_memory(experiment, self._data, zero, micro, device.is_gpu, self.sizes, passes)
        at_once = self._encoders.at_once(micro, device.is_gpu)
        memory = replace(memory, worker=with_encoders(memory.worker, memory.state, self._encoders, at_once))
        peak = memory.worker.peak.total + (0 if device.is_gpu else memory.worker.host)
        free, gaps = (GPU_MARGIN, GPU_GAPS) if device.is_gpu else (CPU_MARGIN, CPU_GAPS)
        margin = free + int(gaps * peak)
        return memory, margin, peak + margin

    def _passes(self, experiment: Experiment, micro: int) -> PassMemory:
        """Return the memory of a micro-batch's passes: traced, or for those above the spec's own on a line.

        The line goes through its own and the next sizes up to FARTHEST times as large. Memory is a maximum of straight
        lines, so that nothing between the two takes more.
        """
        own = experiment.micro_size
        if micro <= own:
            return pass_memory(experiment, self._data, micro, self.machine.device.is_gpu)
        above = [each for each in self.micro_sizes if each > own]
        far = max((each for each in above if each <= FARTHEST * own), default=above[0])
        is_gpu = self.machine.device.is_gpu
        near, end = (pass_memory(experiment, self._data, size, is_gpu) for size in (own, far))
        return near.between(end, (micro - own) / (far - own))

    def _with(self, checkpointing: bool) -> Experiment:
        engine = self._experiment.engine.model_copy(update={"activation_checkpointing": checkpointing})
        return self._experiment.model_copy(update={"engine": engine})


@dataclass(frozen=True)
class SettingMemory:
    """Memory of one worker under one setting."""

    state: StateMemory
    worker: WorkerMemory
    checkpoint_copy: int
    """Bytes of the copy in host memory from which a checkpoint is written in the background; 0 when it is blocking."""


def parameter_sizes(experiment: Experiment, data: DataShape) -> ParameterSizes:
    """Return the sizes of everything that is trained, on the meta device."""
    step = MetaStep(experiment, data, MetaForm())
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
    sizes: ParameterSizes | None = None, passes: PassMemory | None = None,
) -> SettingMemory:  # fmt: skip
    """Return one worker's memory with micro-batches of `micro` samples, on `resources.max_workers` workers.

    `sizes` and `passes` save the traces where they are known.
    """
    sizes = sizes or parameter_sizes(experiment, data)
    passes = passes or pass_memory(experiment, data, micro, on_gpu)
    workers = experiment.resources.max_workers
    compute = DTYPES[experiment.training.precision].itemsize
    accumulates = experiment.batch.size > micro * workers
    shape = WorkerShape(setting, workers, compute, accumulates, on_gpu)
    state = state_memory(sizes, setting, workers, compute, num_averages(experiment), accumulates)
    copy = checkpoint_copy(experiment, sizes, setting)
    worker = WorkerMemory(
        passes_peak(sizes, state, passes, shape),
        update_peak(sizes, state, shape),
        _evaluation(experiment, data, sizes, state, micro, shape),
        state.host + copy + passes.host,
    )
    return SettingMemory(state, worker, copy)


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


def evaluated_at_once(experiment: Experiment, micro: int) -> Sequence[int]:
    """Return the sizes of the forward passes of an evaluation: held-out batches, and the samples of the grid."""
    evaluation = experiment.evaluation
    guided = 2 if getattr(experiment.sampling, "guidance", 1.0) != 1.0 else 1
    drawn = max(evaluation.samples, micro if evaluation.quality else 0)
    return [micro, guided * drawn]


def _evaluation(
    experiment: Experiment, data: DataShape, sizes: ParameterSizes, state: StateMemory, micro: int, shape: WorkerShape,
) -> MemoryParts:  # fmt: skip
    if experiment.evaluation.every is None:
        return MemoryParts(0, 0, 0, 0, 0, 0)
    largest = max(evaluated_at_once(experiment, micro))
    key = repr((experiment.content_hash(), data.of_experiment(experiment), largest))
    if key not in _evaluated:
        _evaluated[key] = evaluation_memory(experiment, data, largest)
    return evaluation_peak(sizes, state, _evaluated[key], experiment.training.ema is not None, shape)
