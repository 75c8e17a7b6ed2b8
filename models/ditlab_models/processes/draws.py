"""Random draws by sample, each from a generator of its own, times of held-out metrics by quarter,
samples in batches.

No draw depends on the number of samples. Every held-out sample is seen once in each quarter of
time, so that a figure is a mean over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ditlab_models.contract import Batch, Conditions, NoiseSource, Samples
from ditlab_models.processes.specs import NUM_QUARTERS, quarter_names
from ditlab_models.tensors import wide_dtype


def draw_seeds(num: int, generator: torch.Generator) -> list[int]:
    """Draw a seed for each of `num` samples, in turn: integers in [0, 2^62)."""
    return [
        int(torch.randint(2**62, (), generator=generator, device=generator.device))
        for _ in range(num)
    ]


def seeded_normal(seeds: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Draw N(0, 1), (number of seeds, *shape) float32 on the CPU: a seed gives the same numbers on
    every machine.
    """
    return torch.stack(
        [torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )


def starting_noise(noise: Tensor, shape: Sequence[int], like: Tensor) -> Tensor:
    """Return given noise on the device of `like`, in the better of its dtype and that of `like`.

    Raises ValueError unless it has the shape of the samples and holds finite numbers.
    """
    check_noise_shape(noise, shape)
    held = ""
    if not noise.is_floating_point():
        held = f"{noise.dtype}".removeprefix("torch.")
    elif not bool(noise.isfinite().all()):
        held = "NaN or infinities"
    if held:
        raise ValueError(
            f"noise holds {held}, and samples begin with finite numbers; draw it from N(0, 1)."
        )
    return noise.to(like.device, torch.promote_types(noise.dtype, like.dtype))


def check_noise_shape(noise: Tensor, shape: Sequence[int]) -> None:
    """Raise ValueError unless given noise has the shape of the samples."""
    if tuple(noise.shape) != tuple(shape):
        raise ValueError(
            f"noise has the shape {tuple(noise.shape)}, and samples begin with {tuple(shape)} "
            "here; give it that shape."
        )


def state_dtype(network: nn.Module) -> torch.dtype:
    """Dtype of a sampler's state: that of the weights, but float32 at least, as bfloat16 loses
    small steps.
    """
    return wide_dtype(next(network.parameters()))


class SampleDraws:
    """Draws for `num` samples, whose generators are seeded in turn from `generator`, on its
    device.
    """

    def __init__(self, num: int, generator: torch.Generator, device: torch.device) -> None:
        self._device = device
        self._generators = [
            torch.Generator(generator.device).manual_seed(seed)
            for seed in draw_seeds(num, generator)
        ]

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw U[0, 1), (num, ...): `shape` includes `num`, first. float32 has 2^24 values, float64
        2^53.
        """
        return self._by_sample(partial(torch.rand, shape[1:], dtype=dtype))

    def normal(self, like: Tensor) -> Tensor:
        """Draw N(0, 1) in the shape of `like` (num, ...), float32."""
        return self._by_sample(partial(torch.randn, like.shape[1:]))

    def _by_sample(self, draw: Callable[..., Tensor]) -> Tensor:
        return torch.stack([draw(generator=g, device=g.device) for g in self._generators]).to(
            self._device
        )


def draw_times(noise_source: NoiseSource, quarter: int, num: int) -> Tensor:
    """Draw times (num,), uniform in a quarter of [0, 1), under the name `time_t0` to `time_t3`."""
    return (quarter + noise_source.uniform(f"time_t{quarter}", (num,))) / NUM_QUARTERS


def held_out_draws(
    batch: Batch, noise_source: NoiseSource, quarter: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the batch's images, noise for them, `noise_t0` to `noise_t3`, and times (B,) of a
    quarter of [0, 1).
    """
    image = batch["image"]
    noise = noise_source.normal(f"noise_t{quarter}", image.shape)
    return image, noise, draw_times(noise_source, quarter, len(image))


def quarter_mean(measure: Callable[[int], Tensor]) -> Tensor:
    """Return the mean of what is measured of the quarters 0 to 3."""
    return torch.stack([measure(quarter) for quarter in range(NUM_QUARTERS)]).mean(0)


def mean_over_quarters(
    measure: Callable[[int], dict[str, Tensor]], component: str
) -> dict[str, Tensor]:
    """Return the mean of each of `measure`'s metrics over the quarters 0 to 3, and one component by
    quarter.
    """
    quarters = [measure(quarter) for quarter in range(NUM_QUARTERS)]
    means = {
        name: torch.stack([metrics[name] for metrics in quarters]).mean(0) for name in quarters[0]
    }
    by_quarter = zip(quarter_names(component), quarters, strict=True)
    return means | {name: metrics[component] for name, metrics in by_quarter}


def batch_means(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Return metrics of a batch as means: of a value a sample, (B,), or as they are, ()."""
    return {name: float(value.mean()) for name, value in metrics.items()}


def draw_samples(
    sampler: Any,
    network: nn.Module,
    conditions: Conditions,
    num: int,
    generator: torch.Generator,
    batch_size: int,
    trajectory: bool = False,
    noise: Tensor | None = None,
    *,
    drawn: Callable[[int], None] = lambda size: None,
) -> Samples:
    """Draw `num` samples on the generator's device, at most `batch_size` at a time, and move them
    to the host.

    `conditions` and `noise` are those of all samples, (num, ...) each. `drawn` is called with the
    size of each batch. Raises ValueError for noise of another number of samples.
    """
    if noise is not None and (noise.ndim == 0 or len(noise) != num):
        raise ValueError(
            f"noise has the shape {tuple(noise.shape)}, and {num} samples are drawn; give it a "
            f"first axis of {num}."
        )
    parts: list[Samples] = []
    batch_size = min(batch_size, sampler.max_batch_size or batch_size)
    for start in range(0, num, batch_size):
        size = min(batch_size, num - start)
        part = {
            name: values[start : start + size].to(generator.device)
            for name, values in conditions.items()
        }
        given = {}
        if noise is not None:
            given = {"noise": noise[start : start + size].to(generator.device)}
        parts.append(sampler.sample(network, part, size, generator, trajectory, **given))
        drawn(size)
    frames = [part.trajectory.cpu() for part in parts if part.trajectory is not None]
    return Samples(
        torch.cat([part.values.cpu() for part in parts]),
        {
            name: torch.cat([part.conditions[name].cpu() for part in parts])
            for name in parts[0].conditions
        },
        torch.cat(frames, 1) if frames else None,
        parts[0].fields,
    )
