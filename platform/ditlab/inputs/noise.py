"""Keyed random numbers: every draw is a function of (seed, stream, step, global micro-batch index,
name) alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 64
"""Rows that `RowNoise` draws at once."""


def derived_seed(*key: str | int) -> int:
    """Derive a 63-bit seed from a key; equal keys give equal seeds on every machine."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class _Drawn:
    """Base of the noise sources (`ditlab_models.contract.NoiseSource`)."""

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw U[0, 1), float32, of a shape."""
        return self._draw(torch.rand, name, shape)

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw N(0, 1), float32, of a shape."""
        return self._draw(torch.randn, name, shape)

    def _draw(self, distribution: Callable[..., Tensor], name: str, shape: Sequence[int]) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class KeyedNoise(_Drawn):
    """Random numbers of one micro-batch.

    One worker that accumulates four micro-batches and four workers with one each draw the same
    numbers. A slice of a micro-batch (`start` to `start + len`) gets its slice of the whole one's
    numbers. Numbers come from the device's own generator: the same on every CPU, the same on every
    CUDA device of a torch version, different between the two. Those that `prepare_on_host` hands
    out are a CPU's on every device.
    """

    seed: int
    stream: str
    """Use of the numbers: `train`, `evaluate`. Streams share no numbers."""
    step: int
    micro_index: int
    """Index of the micro-batch within the global batch of its step."""
    micro_size: int
    """Samples of the whole micro-batch."""
    device: torch.device
    start: int = 0
    """First sample of this slice within the micro-batch."""

    def _draw(self, distribution: Callable[..., Tensor], name: str, shape: Sequence[int]) -> Tensor:
        generator = torch.Generator(self.device)
        generator.manual_seed(
            derived_seed(self.seed, self.stream, self.step, self.micro_index, name)
        )
        whole = distribution((self.micro_size, *shape[1:]), generator=generator, device=self.device)
        return whole[self.start : self.start + shape[0]]


def fixed_noise(first: int, device: torch.device, bucket: int = 0) -> RowNoise:
    """Return the random numbers of held-out metrics, for rows from place `first` on among a view's
    rows of a bucket: the same in every experiment, so that a row has the same masks wherever it is
    evaluated."""
    return RowNoise(0, f"evaluate/{bucket}" if bucket else "evaluate", first, device)


@dataclass(frozen=True)
class RowNoise(_Drawn):
    """Random numbers of rows `first`, `first` + 1, ... of a data set, whatever their batches."""

    seed: int
    stream: str
    first: int
    device: torch.device

    def _draw(self, distribution: Callable[..., Tensor], name: str, shape: Sequence[int]) -> Tensor:
        """Draw slices of whole blocks of rows: a generator a row would cost more than the
        numbers.
        """
        parts = []
        row = self.first
        stop = self.first + shape[0]
        while row < stop:
            block, start = divmod(row, BLOCK)
            taken = min(BLOCK - start, stop - row)
            noise = KeyedNoise(self.seed, self.stream, 0, block, BLOCK, self.device, start)
            parts.append(noise._draw(distribution, name, (taken, *shape[1:])))
            row += taken
        return torch.cat(parts)
