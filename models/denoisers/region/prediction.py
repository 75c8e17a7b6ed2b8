"""The network's best guess of masked regions, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from denoisers.contract import NoiseSource
from denoisers.layers.rows import Rows
from denoisers.region.spec import RegionSpec


def predict(
    network: nn.Module,
    spec: RegionSpec,
    num_timesteps: int,
    x: Tensor,
    mask: Tensor,
    present: Tensor | None,
    noise: NoiseSource,
) -> Tensor:
    """Features of every region, (B, R, F), of which those of masked ones (B, R) mean something; at least float32.

    Under `corruption: mask` at t = 0; under `ddpm` from pure noise at the last timestep, of which an x0 prediction that
    minimises squared error keeps nothing: both estimate the expectation of the masked regions given the others.
    """
    x_t, t = one_pass(spec, num_timesteps, x, mask, noise)
    return ask(network, x_t, mask, t, present, None)


def one_pass(
    spec: RegionSpec, num_timesteps: int, x: Tensor, mask: Tensor, noise: NoiseSource
) -> tuple[Tensor, Tensor]:
    """(x_t, t) that `predict` asks the network for, and the objective for rows alone."""
    if spec.corruption == "mask":
        return x, torch.zeros(len(x), dtype=torch.int64, device=x.device)
    hidden = torch.where(mask[..., None], noise.normal("one_pass", x.shape).to(x), x)
    return hidden, torch.full((len(x),), num_timesteps - 1, device=x.device)


def ask(network: nn.Module, x_t: Tensor, mask: Tensor, t: Tensor, present: Tensor | None, rows: Rows | None) -> Tensor:
    """The network's answer in float32 or better, whatever its parameters' dtype: (B, R, F), or (B, Q, F) at `rows`."""
    dtype = next(network.parameters()).dtype
    answer = network(x_t.to(dtype), mask, t, present, None if rows is None else rows.index)
    return answer.to(torch.promote_types(answer.dtype, torch.float32))
