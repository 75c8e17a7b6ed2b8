"""A network and objective without an engine, holding a given state's weights."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ditlab.checking.prove.life.observed_steps import CopiedState
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.noise import derived_seed
from ditlab.training.plan import TrainingRun

SPREAD = 0.05
"""Standard deviation of the numbers that set an average apart from its weights."""
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class PlainModel:
    """Network and objective in one precision."""

    network: nn.Module
    objective: Any


def build_plain(run: TrainingRun, rank: Rank, weights: dict[str, Tensor], dtype: torch.dtype) -> PlainModel:
    """Build a run's network and objective anew, in evaluation mode, with weights by name in `dtype`.

    `weights`: whole tensors, float32 or float64, named `network.path` and `objective.path`, buffers among them.
    """
    experiment = run.experiment
    with torch.random.fork_rng(devices=[]):
        objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, run.data.text)
        network: Any = experiment.family.build_network(experiment.model)
    owners = {"network": network, "objective": objective.modules or nn.Module()}
    with torch.no_grad():
        for prefix, owner in owners.items():
            owner.to(rank.device, dtype).eval()
            for name, value in owner.state_dict(keep_vars=True).items():
                value.copy_(weights[f"{prefix}.{name}"].view(value.shape))
    return PlainModel(network, objective)


def whole_weights(state: CopiedState, channel: ControlChannel, kind: str) -> dict[str, Tensor]:
    """Put the workers' slices of one kind (`master`, `ema`) together, flat tensors by name; buffers go with them."""
    slices: dict[str, dict[int, Tensor]] = {}
    for part in channel.gather({key: value for key, value in state.tensors.items() if key[0] in (kind, "buffer")}):
        assert isinstance(part, dict)
        for (_, name, start), values in part.items():
            slices.setdefault(name, {})[start] = values
    return {name: torch.cat([parts[start] for start in sorted(parts)]) for name, parts in slices.items()}


def set_apart(state: CopiedState, seed: int) -> CopiedState:
    """Return the state with an average that differs from the weights everywhere, and so in what a network gives.

    After a few steps of a warm-up the two are all but equal, and which of them was evaluated could not be told.
    """
    tensors = dict(state.tensors)
    for (field, name, start), values in state.tensors.items():
        if field == "ema":
            generator = torch.Generator().manual_seed(derived_seed(seed, "prove", "average", name))
            drawn = torch.randn(start + values.numel(), generator=generator)[start:]
            tensors[field, name, start] = state.tensors["master", name, start] + SPREAD * drawn
    return CopiedState(tensors, copy.copy(state.scalars), state.step, state.position)
