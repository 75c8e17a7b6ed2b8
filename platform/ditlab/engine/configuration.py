"""DeepSpeed's configuration for an experiment, and its initialisation around a module."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._tensor_str import printoptions

from ditlab.engine.deepspeed_import import import_deepspeed
from ditlab.engine.distributed import Rank, limit_collectives
from ditlab.engine.memory.swapping import check_swapping
from ditlab.errors import UserError
from ditlab.spec.engine import LARGEST_BUCKET, Zero
from ditlab.spec.experiment import Experiment


def configuration(
    experiment: Experiment, rank: Rank, micro_size: int, accumulation: int, swap: Path | None
) -> dict[str, Any]:
    """Build DeepSpeed's configuration, without clipping or norms of gradients: `engine.update` does both."""
    precision, zero = experiment.training.precision, experiment.engine.zero
    config: dict[str, Any] = {
        "train_batch_size": micro_size * accumulation * rank.world_size,
        "train_micro_batch_size_per_gpu": micro_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        "zero_optimization": _zero(zero, rank, swap),
    }
    if precision == "bf16":
        # Its check for overflow waits for the GPU in every step.
        config["bf16"] = {"enabled": True, "check_grad_overflow": False}
    elif precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 16}
    return config


def _zero(zero: Zero, rank: Rank, swap: Path | None) -> dict[str, Any]:
    config: dict[str, Any] = {"stage": zero.stage}
    on_gpu = rank.device.type == "cuda"
    if zero.stage in (1, 2) and not on_gpu:
        # The copy into one contiguous gradient buffer costs 3 to 6% of a small step and saves no memory here.
        config["contiguous_gradients"] = False
    if zero.stage in (1, 2) and zero.offload == "none":
        config["compute_grad_norm"] = False  # it waits for the GPU
    if zero.stage == 3:
        config["memory_efficient_linear"] = False  # it would stay for good: `engine.linear` puts it in place
    for name, where in (("offload_optimizer", zero.offload), ("offload_param", zero.offload_parameters)):
        if where != "none":
            config[name] = {"device": where, "pin_memory": on_gpu}
        if where == "nvme":
            config[name]["nvme_path"] = str(swap)
    return config


def initialize(module: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], rank: Rank) -> Any:
    """Create DeepSpeed's engine. Raises UserError for a precision or offload that this machine does not support."""
    deepspeed = import_deepspeed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from deepspeed.accelerator import get_accelerator

        logger = logging.getLogger("DeepSpeed")
        logger.setLevel(logging.WARNING)
        logger.addFilter(_is_of_use)
        if "fp16" in config and not get_accelerator().is_fp16_supported():
            raise UserError(
                f"training.precision=fp16 is not supported on this {rank.device.type}; "
                "set training.precision to bf16 or fp32."
            )
        # Set, so that nothing is probed (compiler runs) or built: the extensions that DeepSpeed would look for here are
        # a shared-memory all-reduce and its own optimisers; gloo and torch's fused AdamW do without.
        vars(deepspeed.ops)["__compatible_ops__"] = {}
        if config["zero_optimization"].get("offload_optimizer", {}).get("device") == "nvme":
            check_swapping()
        # DeepSpeed allocates a bucket of this size whatever the network's: 2 GB at its default.
        num_parameters = sum(getattr(each, "ds_numel", each.numel()) for each in module.parameters())
        config["zero_optimization"]["reduce_bucket_size"] = min(LARGEST_BUCKET, num_parameters)
        deepspeed.init_distributed(dist_backend="nccl" if rank.device.type == "cuda" else "gloo")
        limit_collectives(rank.timeout)
        # DeepSpeed formats every parameter's values for a message that it then does not print: half of the time taken
        # by small networks.
        with printoptions(threshold=0, edgeitems=0):
            return deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0]


def _is_of_use(record: logging.LogRecord) -> bool:
    """Return False for DeepSpeed's remark that it has not tested Muon on its partitions: our tests have."""
    return "untested optimizer" not in record.getMessage()
