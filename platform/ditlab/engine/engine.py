"""DeepSpeed ZeRO behind a small interface: forward and backward, step, average, state by named pieces."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ditlab.engine.distributed import Rank
from ditlab.engine.partitions import MOMENTS, Partitions, Piece
from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment

PieceReader = Callable[[str, str, int, int], Tensor]
SLICE = 2**24  # values exchanged at once with the average: 64 MiB


class TrainingModule(nn.Module):
    """What DeepSpeed wraps: the network and the objective's own modules, entered through one forward.

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
        """`loss`: (weighted sum, components) of (batch, noise source). `network`: the network's own forward pass."""
        if job == "network":
            return self.network(*inputs, **named)
        components = self._loss(self.network, *inputs)
        total = sum(self._weights[name] * value for name, value in components.items())
        return total, components


class Engine:
    """Trains a `TrainingModule` under an experiment's precision, ZeRO stage, clipping and averaging.

    Raises UserError where the device cannot compute in the precision asked for.
    """

    def __init__(self, module: TrainingModule, experiment: Experiment, rank: Rank) -> None:
        spec = experiment.engine
        self.stage = spec.zero.stage
        self._module = module
        self._clip = getattr(experiment.training.clip, "max_norm", 0.0)
        network: Any = module.network
        if spec.activation_checkpointing:
            _recompute(network.checkpointed_modules())
        if spec.compile:
            network.compile()
        optimizer = torch.optim.AdamW(
            module.parameters(),
            lr=experiment.optimizer.lr,
            betas=experiment.optimizer.betas,
            eps=experiment.optimizer.eps,
            weight_decay=experiment.optimizer.weight_decay,
            fused=True,
        )
        self._engine = _initialize(module, optimizer, _config(experiment, rank), rank)
        if self.stage == 0 and rank.world_size == 1:
            # DeepSpeed would copy all gradients into a flat buffer and back, to sum them over one worker.
            self._engine.enable_backward_allreduce = False
        self.partitions = Partitions(self._engine, self.stage)
        ema = experiment.training.ema
        self._decay = ema.decay if ema else None
        self.ema = [master.clone() for master in self.partitions.masters()] if ema else None

    def forward_backward(self, batch: Mapping[str, Tensor], noise_source: Any, last: bool) -> dict[str, Tensor]:
        """One micro-batch, the step's `last` or not. Returns the loss components, and `loss`, their weighted sum:
        detached scalars."""
        total, components = self._engine("loss", batch, noise_source)
        self._engine.backward(total)
        if not last:
            self._engine.step()  # only counts: DeepSpeed updates at the accumulation boundary
        return {"loss": total.detach(), **{name: value.detach() for name, value in components.items()}}

    def step(self, step: int, lr: float) -> Tensor | float:
        """Apply the accumulated gradients as optimiser step `step` (from 0). Returns the global gradient norm before
        clipping; infinite where float16 overflowed and the update was left out."""
        self.partitions.set_learning_rate(lr)
        norm: Any = None
        if self.stage == 0:
            parameters = list(self._module.parameters())
            if self._clip:
                norm = nn.utils.clip_grad_norm_(parameters, self._clip)
            else:
                norm = nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
        self._engine.step()
        if norm is None:
            norm = self._engine.get_global_grad_norm()
        if self.ema is not None and self._decay is not None:
            # Karras-style warm-up of the average, or a short run would sample from its start.
            decay = min(self._decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(self.ema, self.partitions.masters(), 1 - decay)
        return norm

    def network(self, *inputs: Any, **named: Any) -> Any:
        """The network's forward pass alone. With ZeRO-3 every worker must call it equally often."""
        return self._engine.module("network", *inputs, **named)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside: averaged weights where there is an average, evaluation mode, no gradients.

        An error inside ends the run, so nothing is put back: that takes every worker, and the others are elsewhere.
        """
        self._engine.eval()
        self._swap_ema()
        with torch.no_grad():
            yield
        self._swap_ema()
        self._engine.train()

    def _swap_ema(self) -> None:
        """Exchanges weights and average, a slice at a time: a copy of the whole partition might not fit."""
        if self.ema is None:
            return
        with self.partitions.rewriting():
            for flats in zip(self.partitions.masters(), self.ema, strict=True):
                for master, average in zip(*(flat.view(-1).split(SLICE) for flat in flats), strict=True):
                    held = master.clone()
                    master.copy_(average)
                    average.copy_(held)

    def state(self) -> Iterator[tuple[str, Piece, Tensor]]:
        """(field, piece, flat float32 values) of this worker: `master`, both moments, `ema`."""
        fields = {"master": self.partitions.masters(), **{name: self.partitions.moments(name) for name in MOMENTS}}
        if self.ema is not None:
            fields["ema"] = self.ema
        for field, flats in fields.items():
            for piece in self.partitions.pieces:
                yield field, piece, piece.of(flats)

    def scalars(self) -> dict[str, float]:
        """State that every worker holds alike: Adam's step count, the loss scale's."""
        scaler = getattr(self._engine.optimizer, "loss_scaler", None) if self._engine.fp16_enabled() else None
        scale = {f"loss_scale.{key}": float(getattr(scaler, key)) for key in _SCALER_STATE} if scaler else {}
        return {"adam_step": float(self.partitions.adam_step), **scale}

    def load_state(self, read: PieceReader, scalars: Mapping[str, float], has_ema: bool) -> None:
        """Takes up a saved state. `read(field, name, start, stop)` gives float32 values, whatever wrote them."""
        with self.partitions.rewriting():
            for field, piece, values in self.state():
                # A run whose average is new starts it from the weights.
                source = "master" if field == "ema" and not has_ema else field
                values.copy_(read(source, piece.name, piece.start, piece.stop))
        self.partitions.adam_step = int(scalars["adam_step"])
        for key in _SCALER_STATE:
            if f"loss_scale.{key}" in scalars:
                setattr(self._engine.optimizer.loss_scaler, key, int(scalars[f"loss_scale.{key}"]))

    def close(self) -> None:
        self._engine.destroy()


_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def _config(experiment: Experiment, rank: Rank) -> dict[str, Any]:
    precision, stage = experiment.training.precision, experiment.engine.zero.stage
    config: dict[str, Any] = {
        "train_batch_size": experiment.batch.size,
        "train_micro_batch_size_per_gpu": experiment.micro_size,
        "gradient_accumulation_steps": experiment.accumulation,
        # Stage 0 is clipped here, where the norm before clipping can be had.
        "gradient_clipping": getattr(experiment.training.clip, "max_norm", 0.0) if stage else 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        "zero_optimization": {"stage": stage},
    }
    if stage in (1, 2) and rank.device.type == "cpu":
        # The copy into one contiguous gradient buffer costs 3 to 6% of a small step and saves no memory here.
        config["zero_optimization"]["contiguous_gradients"] = False
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    elif precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 16}
    return config


def _initialize(module: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], rank: Rank) -> Any:
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        from deepspeed.accelerator import get_accelerator

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        if "fp16" in config and not get_accelerator().is_fp16_supported():
            raise UserError(
                f"training.precision=fp16 is not supported on this {rank.device.type}; "
                "set training.precision to bf16 or fp32."
            )
        # Set, so that nothing is probed (compiler runs) or built: the extensions that DeepSpeed would look for here are
        # a shared-memory all-reduce and its own optimisers; gloo and torch's fused AdamW do without.
        vars(deepspeed.ops)["__compatible_ops__"] = {}
        deepspeed.init_distributed(dist_backend="nccl" if rank.device.type == "cuda" else "gloo")
        return deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0]


def _recompute(modules: Any) -> None:
    """Activation checkpointing in place: names of parameters stay what they were."""
    for module in modules:
        forward = module.forward
        module.forward = lambda *inputs, _forward=forward: checkpoint(_forward, *inputs, use_reentrant=False)
