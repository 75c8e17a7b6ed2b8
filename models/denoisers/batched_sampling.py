"""Any number of samples, drawn in batches."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from denoisers.contract import Samples


def draw_samples(
    sampler: Any,
    network: nn.Module,
    conditions: Mapping[str, Tensor],
    num: int,
    generator: torch.Generator,
    batch_size: int,
    trajectory: bool = False,
    noise: Tensor | None = None,
    *,
    drawn: Callable[[int], None] = lambda size: None,
) -> Samples:
    """Draw `num` samples on the generator's device, at most `batch_size` at a time, and move them to the host.

    The first k depend on neither `num` nor `batch_size`. `conditions` are those of all samples, (num, ...) each, and so
    is `noise`, which samples begin with. `drawn` is called with the size of each batch. Raises ValueError for noise of
    another number of samples.
    """
    if noise is not None and (noise.ndim == 0 or len(noise) != num):
        raise ValueError(
            f"noise has the shape {tuple(noise.shape)}, and {num} samples are drawn; give it a first axis of {num}."
        )
    parts: list[Samples] = []
    batch_size = min(batch_size, sampler.max_batch_size or batch_size)
    for start in range(0, num, batch_size):
        size = min(batch_size, num - start)
        part = {name: values[start : start + size].to(generator.device) for name, values in conditions.items()}
        given = {} if noise is None else {"noise": noise[start : start + size].to(generator.device)}
        parts.append(sampler.sample(network, part, size, generator, trajectory, **given))
        drawn(size)
    frames = [part.trajectory.cpu() for part in parts if part.trajectory is not None]
    return Samples(
        torch.cat([part.values.cpu() for part in parts]),
        {name: torch.cat([part.conditions[name].cpu() for part in parts]) for name in parts[0].conditions},
        torch.cat(frames, 1) if frames else None,
        parts[0].fields,
    )
