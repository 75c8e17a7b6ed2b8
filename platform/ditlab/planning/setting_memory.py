"""Memory of an experiment's workers under one ZeRO setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from denoisers.parameter_roles import parameter_roles
from ditlab.planning.data_shape import DataShape
from ditlab.planning.meta_step import DTYPES, MetaForm, MetaStep
from ditlab.planning.newton_schulz import newton_schulz_flops
from ditlab.planning.pass_memory import PassMemory, evaluation_memory, pass_memory
from ditlab.planning.state_memory import (
    MASTER,
    ParameterGroup,
    ParameterSizes,
    StateMemory,
    ZeroSetting,
    state_memory,
)
from ditlab.planning.worker_memory import (
    MemoryParts,
    WorkerMemory,
    WorkerShape,
    evaluation_peak,
    passes_peak,
    update_peak,
)
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimisation.optimisers import GroupRates


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
    experiment: Experiment,
    data: DataShape,
    setting: ZeroSetting,
    micro: int,
    on_gpu: bool,
    sizes: ParameterSizes | None = None,
    passes: PassMemory | None = None,
) -> SettingMemory:
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


_evaluated: dict[str, int] = {}


def _evaluation(
    experiment: Experiment,
    data: DataShape,
    sizes: ParameterSizes,
    state: StateMemory,
    micro: int,
    shape: WorkerShape,
) -> MemoryParts:
    if experiment.evaluation.every is None:
        return MemoryParts(0, 0, 0, 0, 0, 0)
    largest = max(evaluated_at_once(experiment, micro))
    key = repr((experiment.content_hash(), data.of_experiment(experiment), largest))
    if key not in _evaluated:
        _evaluated[key] = evaluation_memory(experiment, data, largest)
    return evaluation_peak(sizes, state, _evaluated[key], experiment.training.ema is not None, shape)
