"""DeepSpeed ZeRO behind a small interface: forward and backward, step, average, state by parameter
slices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._tensor_str import printoptions

from ditlab.averages import START
from ditlab.engine.averages import WeightAverages
from ditlab.engine.deepspeed_internals import (
    FrozenParameters,
    GradientNorm,
    ParameterSlice,
    Partitions,
    import_deepspeed,
    load_scaler,
    partitioned_linear,
    release,
    scaler_state,
    time_collectives,
    whole_shape,
)
from ditlab.engine.distributed import Rank
from ditlab.engine.memory import checkpoint_activations, kept_memory
from ditlab.engine.optimizers import AddedOptimizer, build_optimizer, parameter_facts
from ditlab.engine.phase_clock import PhaseClock
from ditlab.engine.update import Update
from ditlab.errors import UserError
from ditlab.spec.compiling import compile_decision
from ditlab.spec.engine import LARGEST_BUCKET
from ditlab.spec.experiment import Experiment

SliceReader = Callable[[str, str, int, int], Tensor]
SCALE = "loss_scale."
"""Prefix of the loss scale's numbers among the scalars of a state."""


class TrainingModule(nn.Module):
    """Module that DeepSpeed wraps: the network and the objective's own modules, entered through one
    forward.

    Every forward pass begins at this root, as ZeRO-3 gathers parameters by hooks that start there.
    """

    def __init__(self, network: nn.Module, objective: Any) -> None:
        super().__init__()
        self.network = network
        if objective.modules is not None:
            self.objective = objective.modules
        self._loss = objective.loss
        self._weights = objective.weights

    def forward(self, job: str, *inputs: Any, **named: Any) -> Any:
        """Compute `loss`, (weighted sum, components) of (batch, noise source), or the `network`'s
        own forward pass.
        """
        if job == "network":
            return self.network(*inputs, **named)
        components = self._loss(self.network, *inputs)
        total = sum(self._weights[name] * value for name, value in components.items())
        return total, components


class Engine:
    """Trainer of a `TrainingModule` under an experiment's precision, ZeRO stage, offload, clipping
    and averaging.

    Another engine may be built around the same module once this one is closed, after an exception
    too; it begins with fresh state, so carry `state()` over with `load_state`, cloned before
    `close`. `micro_size` and `accumulation` are the samples of one forward pass and the forward
    passes of one step on each worker (the experiment's by default). `clock` gets the time of each
    phase.

    Raises UserError where the device does not support the experiment's precision or offload.
    """

    def __init__(
        self,
        module: TrainingModule,
        experiment: Experiment,
        rank: Rank,
        micro_size: int | None = None,
        accumulation: int | None = None,
        clock: PhaseClock | None = None,
    ) -> None:
        spec = experiment.engine
        self.stage = spec.zero.stage
        self._module = module
        self._clock = clock or PhaseClock()
        network: Any = module.network
        self._is_compiled = compile_decision(experiment, rank.device.type).is_compiled
        if self._is_compiled:
            # imports torch's compiler: a second
            from ditlab.engine.compilation import compile_blocks

            compile_blocks(network, rank.device, whole_gathers=self.stage == 3)
        if spec.activation_checkpointing or spec.activation_offload == "cpu":
            modules = network.checkpointed_modules()
            checkpoint_activations(
                modules, spec.activation_checkpointing, spec.activation_offload == "cpu"
            )
        with ExitStack() as held:  # until `close`, or until an error below
            if rank.device.type == "cpu":
                held.enter_context(kept_memory())
            if self.stage == 3:
                held.enter_context(partitioned_linear())
            facts = parameter_facts(module)
            optimizer = build_optimizer(
                module, facts, experiment.optimizer, is_aligned=rank.device.type == "cuda"
            )
            config = configuration(
                experiment,
                rank,
                micro_size or experiment.micro_size,
                accumulation or experiment.accumulation,
            )
            self._engine = initialize(module, optimizer, config, rank)
            if self.stage == 0 and rank.world_size == 1:
                # a worker alone has nobody to reduce gradients with
                self._engine.enable_backward_allreduce = False
            time_collectives(self._engine, self.stage, self._clock)
            self.partitions = Partitions(
                self._engine,
                self.stage,
                lambda name: experiment.optimizer.rates(facts[name].role.role).moments,
            )
            self._frozen = FrozenParameters(module, self.stage)
            optimizer.bind(self.partitions, facts, rank.world_size)
            self._gradient_norm = GradientNorm(
                self._engine, self.stage, spec.zero.offload != "none", rank.world_size
            )
            self._update = Update(self.partitions.adam, experiment.training.clip)
            training = experiment.training
            lengths = training.averages.lengths if training.averages else ()
            is_given = experiment.optimizer.averages_weights
            self.averages = WeightAverages(
                self.partitions, self._update, training.ema, lengths, is_given
            )
            if isinstance(optimizer, AddedOptimizer) and is_given:
                optimizer.average_of = self.averages.of
            self._held = held.pop_all()

    def forward_backward(
        self, batch: Mapping[str, Tensor], noise_source: Any, last: bool, weight: float = 1.0
    ) -> dict[str, Tensor]:
        """Run one micro-batch forward and backward; the step's gradient is the mean over workers
        and their passes.

        `last` marks the step's last pass. The pass's gradient counts `weight` times in that mean; 0
        is a filler, whose gradient is zero whatever its loss. Returns the loss components, and
        `loss`, their weighted sum: detached scalars, as if `weight` were 1.
        """
        with self._clock.phase("forward"):
            total, components = self._engine("loss", batch, noise_source)
        with self._clock.phase("backward"), ExitStack() as hooks:
            if weight == 0:  # every gradient is replaced: 0 times a loss of NaN would be NaN
                for parameter in self._module.parameters():
                    if parameter.requires_grad:
                        hooks.callback(parameter.register_hook(torch.zeros_like).remove)
            self._engine.backward(total if weight == 1 else total * weight)
        if not last:
            self._engine.step()  # only counts: DeepSpeed updates at the accumulation boundary
        return {
            "loss": total.detach(),
            **{name: value.detach() for name, value in components.items()},
        }

    def step(self, step: int, lr: float, healthy: Tensor | None = None) -> Tensor:
        """Apply the accumulated gradients as optimiser step `step` (from 0).

        The update is skipped, with weights, moments, Adam's step count and average as they were,
        where the gradient is not finite or `healthy` (0-dim bool, alike on all workers) is false;
        gradients are gone in either case. Returns the global gradient norm before clipping, not
        finite where the gradient was not. Waits for a GPU only where state is offloaded, or for
        float16's own check of overflow.
        """
        for group in self.partitions.adam.param_groups:
            group["lr"] = lr * group["lr_factor"]
        with torch.no_grad():
            norm = self._gradient_norm.measure()
            self._update.prepare(norm, healthy)
        self.averages.begin(step)
        self._engine.step()
        return norm

    def network(self, *inputs: Any, **named: Any) -> Any:
        """Run the network's forward pass alone. With ZeRO-3 every worker must call it equally
        often.
        """
        return self._engine.module("network", *inputs, **named)

    def losses(self, batch: Mapping[str, Tensor], noise_source: Any) -> dict[str, Tensor]:
        """Return the components of a batch's loss, and `loss`, inside `evaluating`.

        With ZeRO-3 every worker must call it equally often.
        """
        total, components = self._engine("loss", batch, noise_source)
        return {"loss": total, **components}

    @contextmanager
    def evaluating(self, averaged: bool = True) -> Iterator[None]:
        """Switch to evaluation mode, no gradients, no compiled blocks and, `averaged`, the average
        if there is one.

        Each kind of block would be compiled once more for passes without gradients, and again for a
        sampler's sizes. An error inside ends the run, so no weight is put back: that takes every
        worker, and the others are elsewhere.
        """
        self._engine.eval()
        if averaged:
            self.averages.exchange()
        with (
            torch.no_grad(),
            torch.compiler.set_stance("force_eager") if self._is_compiled else nullcontext(),
        ):
            yield
        if averaged:
            self.averages.exchange()
        self._engine.train()

    def state(self) -> Iterator[tuple[tuple[str, str, int], Tensor]]:
        """Yield ((field, name, start), flat float32 values) of this worker's slices, for each
        field.

        Fields are `master`, moments, `ema`, `power_LENGTH`; values begin at `start` of the
        flattened parameter `name`. Frozen parameters have the field `frozen` alone, as the network
        computes with them: in its precision.
        """
        for index in range(len(self.partitions.flats)):
            for field, part, values in self._slices(index):
                yield (field, part.name, part.start), values
        for part, values in self._frozen.slices():
            yield ("frozen", part.name, part.start), values

    def _slices(self, index: int) -> Iterator[tuple[str, ParameterSlice, Tensor]]:
        flats = self.partitions.tensors(index) | self.averages.tensors(index)
        for field, flat in flats.items():
            for part in self.partitions.slices_of[index]:
                yield field, part, part.of(flat)

    def scalars(self) -> dict[str, float]:
        """Return the state that is alike on all workers: counts of updates, the loss scale,
        statistics of clipping.
        """
        scale = {SCALE + key: value for key, value in scaler_state(self._engine).items()}
        counts = {"adam_step": float(self.partitions.adam_step)}
        return {**counts, **scale, **self._update.state(), **self.averages.scalars()}

    def load_state(self, read: SliceReader, scalars: Mapping[str, float], has_ema: bool) -> None:
        """Load a saved state; `read(field, name, start, stop)` returns float32 values, whatever
        wrote them.

        Averages of power-function profile begin again where the scalars do not say when they began.
        With frozen parameters every worker must call it.
        """
        new_fields = set[str]()
        if START not in scalars:
            new_fields.update(self.averages.exponents)
        if not has_ema:
            new_fields.add("ema")
        with self.partitions.rewriting():
            for index in range(len(self.partitions.flats)):
                for field, part, values in self._slices(index):
                    # A run whose average is new starts it from the weights.
                    source = "master" if field in new_fields else field
                    values.copy_(read(source, part.name, part.start, part.stop))
        self._frozen.load(read)
        self.partitions.adam_step = int(scalars["adam_step"])
        self._update.load(scalars)
        self.averages.load(scalars)
        saved = {
            name.removeprefix(SCALE): int(value)
            for name, value in scalars.items()
            if name.startswith(SCALE)
        }
        load_scaler(self._engine, saved)

    def close(self) -> None:
        """Release the module. Safe in whatever state an exception left the engine."""
        with self._held:
            self._engine.destroy()
            release(self._module)


def lay_out_as_trained(
    module: TrainingModule, experiment: Experiment, device: torch.device, workers: int
) -> None:
    """Move the parameters of a module without an engine to where the engine of so many workers has
    them.

    ZeRO stages 1 and 2 have a buffer for each group of the optimiser, and stage 3 of one worker has
    one for all; at stages 0 and 3 of several each parameter has its own. A product may be summed in
    another order where a matrix begins at another address modulo the width of a vector: one sample
    alone, through a network of pixelhdm whose parameters had moved by a few numbers, differed in
    the last bit.
    """
    zero = experiment.engine.zero
    has_shards = workers > 1 or zero.offload_parameters != "none"
    if zero.stage == 0 or (zero.stage == 3 and has_shards):
        return
    optimizer = build_optimizer(
        module, parameter_facts(module), experiment.optimizer, device.type == "cuda"
    )
    buffers: list[list[nn.Parameter]] = [group["params"] for group in optimizer.param_groups]
    if zero.stage == 3:
        buffers = [list(chain(*buffers))]
    for parameters in buffers:
        flat = torch.cat([each.detach().reshape(-1) for each in parameters])
        parts = flat.split([each.numel() for each in parameters])
        for parameter, values in zip(parameters, parts, strict=True):
            parameter.data = values.view(parameter.shape)


def configuration(
    experiment: Experiment, rank: Rank, micro_size: int, accumulation: int
) -> dict[str, Any]:
    """Build DeepSpeed's configuration, without clipping or norms of gradients: `engine.update` does
    both.
    """
    precision = experiment.training.precision
    spec = experiment.engine.zero
    on_gpu = rank.device.type == "cuda"
    zero: dict[str, Any] = {"stage": spec.stage}
    if spec.stage in (1, 2) and not on_gpu:
        # A contiguous gradient buffer costs 3 to 6% of a small step and saves no memory here.
        zero["contiguous_gradients"] = False
    if spec.stage in (1, 2) and spec.offload == "none":
        zero["compute_grad_norm"] = False  # it waits for the GPU
    if spec.stage == 3:
        # it would stay for good: `partitioned_linear` puts it in place
        zero["memory_efficient_linear"] = False
    for name, where in (
        ("offload_optimizer", spec.offload),
        ("offload_param", spec.offload_parameters),
    ):
        if where != "none":
            zero[name] = {"device": where, "pin_memory": on_gpu}
    config: dict[str, Any] = {
        "train_batch_size": micro_size * accumulation * rank.world_size,
        "train_micro_batch_size_per_gpu": micro_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        "steps_per_print": None,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "timers": {"throughput": {"enabled": False}},  # it waits for the GPU twice a step
    }
    if precision == "bf16":
        # Its check for overflow waits for the GPU in every step.
        config["bf16"] = {"enabled": True, "check_grad_overflow": False}
    elif precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 16}
    return config


def initialize(
    module: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], rank: Rank
) -> Any:
    """Create DeepSpeed's engine. Raises UserError for a precision or offload that this machine does
    not support.
    """
    deepspeed = import_deepspeed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from deepspeed.accelerator import get_accelerator

        if "fp16" in config and not get_accelerator().is_fp16_supported():
            raise UserError(
                f"training.precision=fp16 is not supported on this {rank.device.type}; "
                "set training.precision to bf16 or fp32."
            )
        # DeepSpeed allocates a bucket of this size whatever the network's: 2 GB at its default.
        num_trained = sum(
            whole_shape(each).numel() for each in module.parameters() if each.requires_grad
        )
        config["zero_optimization"]["reduce_bucket_size"] = min(LARGEST_BUCKET, num_trained)
        deepspeed.init_distributed(dist_backend="nccl" if rank.device.type == "cuda" else "gloo")
        # DeepSpeed sets no timeout for its own groups, and torch's is 30 minutes over gloo and 10
        # over NCCL.
        for name in ("default_pg_timeout", "default_pg_nccl_timeout"):  # no public way exists
            setattr(distributed.distributed_c10d, name, timedelta(seconds=rank.timeout))
        # DeepSpeed formats every parameter's values for a message that it then does not print: half
        # of the time taken by small networks.
        with printoptions(threshold=0, edgeitems=0):
            return deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0]
