"""Samples in batches, with reports of the progress."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from denoisers.batched_sampling import draw_samples
from denoisers.contract import Samples
from ditlab.progress import Progress

FIRST_BATCH, BATCHES = "drawing the first batch of samples", "drawing samples"


def draw_reported(
    progress: Progress, sampler: Any, network: nn.Module, conditions: Mapping[str, Tensor], num: int, *rest: Any
) -> Samples:
    """Draw samples as `draw_samples` does with the same arguments, and report evaluations of the network and samples.

    How many evaluations the first batch takes is unknown until it is complete: solver and guidance decide that.
    """
    done = evaluations = 0

    def count_evaluation(*_: object) -> None:
        nonlocal evaluations
        evaluations += 1
        if not done:
            progress(FIRST_BATCH, evaluations, None, "network evaluations")

    def count_samples(size: int) -> None:
        nonlocal done
        done += size
        progress(BATCHES, done, num, "samples")

    hook = network.register_forward_pre_hook(count_evaluation)
    try:
        return draw_samples(_CountedSampler(sampler, count_samples), network, conditions, num, *rest)
    finally:
        hook.remove()


class _CountedSampler:
    """Sampler that reports the size of each batch that it has drawn."""

    def __init__(self, sampler: Any, on_batch: Callable[[int], None]) -> None:
        self._sampler, self._on_batch = sampler, on_batch
        self.max_batch_size = sampler.max_batch_size

    def sample(self, network: nn.Module, conditions: Any, num: int, *rest: Any, **more: Any) -> Samples:
        samples: Samples = self._sampler.sample(network, conditions, num, *rest, **more)
        self._on_batch(num)
        return samples
