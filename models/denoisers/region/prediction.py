"""The network's prediction of masked regions in one forward pass."""

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
    """Predict the features (B, R, F), at least float32; those of masked regions (B, R) are meaningful.

    Under `corruption: mask` at t = 0; under `ddpm` from pure noise at the last timestep, which an x0 prediction that
    minimises squared error ignores: both estimate the expectation of the masked regions given the others.
    """
    x_t, t = one_step_inputs(spec, num_timesteps, x, mask, noise)
    return evaluate_network(network, x_t, mask, t, present, None)


def one_step_inputs(
    spec: RegionSpec, num_timesteps: int, x: Tensor, mask: Tensor, noise: NoiseSource
) -> tuple[Tensor, Tensor]:
    """Make the network's inputs x_t and t for a prediction in one forward pass."""
    if spec.corruption == "mask":
        return x, torch.zeros(len(x), dtype=torch.int64, device=x.device)
    noised = torch.where(mask[..., None], noise.normal("one_pass", x.shape).to(x), x)
    return noised, torch.full((len(x),), num_timesteps - 1, device=x.device)


def evaluate_network(
    network: nn.Module, x_t: Tensor, mask: Tensor, t: Tensor, present: Tensor | None, rows: Rows | None
) -> Tensor:
    """Evaluate the network in float32 or better, whatever its parameters' dtype: (B, R, F), or (B, Q, F) at `rows`."""
    dtype = next(network.parameters()).dtype
    output = network(x_t.to(dtype), mask, t, present, None if rows is None else rows.index)
    return output.to(torch.promote_types(output.dtype, torch.float32))


def present_or_none(present: Tensor) -> Tensor | None:
    """Return `present` (B, R) bool, or None where no window is padded: attention without a mask has faster kernels."""
    return None if bool(present.all()) else present
