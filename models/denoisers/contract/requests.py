"""Requests for samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from denoisers.contract.rows import RealRows

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """Text that samples hold at a given position."""

    text: str
    position: int = 0
    """Index of its first token; negative counts from a sample's end."""


@dataclass(frozen=True)
class SampleRequest:
    """Conditions of samples."""

    label: int | None = None
    """Class of every sample."""
    prompts: Sequence[Prompt] = ()
    """Text of every sample, the rest being filled in; for a sampler that `draws_per_prompt`, descriptions of samples:
    equally many samples for each prompt, one prompt's after the other's."""
    negative_prompt: str | None = None
    """Description that guidance leads away from; None: the sampler's default."""
    encode: Callable[[Sequence[str]], Mapping[str, Tensor]] | None = None
    """Texts to batch fields, (num, ...) each, where an encoder outside the network makes them."""
    size: tuple[int, int] | None = None
    """(height, width) in pixels, for families that draw any size."""
    seed: int | None = None
    """Seed of the first sample (of each prompt); the next ones count up. None: the sampler's generator gives seeds."""
    start: Tensor | None = None
    """(channels, height, width) in the model's range: an image that sampling starts from, in place of pure noise."""
    strength: float = 1.0
    """Share of the way from noise that is done again from `start`: 1 is all of it, near 0 keeps the image."""
    rows: RealRows | None = None
    """One row per sample, for a sampler that completes rows or takes its conditions from them."""


DEFAULT_REQUEST = SampleRequest()
"""A request without conditions."""
