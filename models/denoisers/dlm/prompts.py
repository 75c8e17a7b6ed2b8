"""Prompts: text at given positions of a sample, as tokens that stay fixed.

B batch, L tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from denoisers.contract import Prompt, TextCodec

NAME_LENGTH = 40
"""Characters of a prompt that messages show."""


@dataclass(frozen=True)
class Clamp:
    """Tokens of a sample that stay fixed."""

    tokens: Tensor
    """(B, L) int64; meaningless where the mask is false."""
    mask: Tensor
    """(B, L) bool: true where a token stays fixed."""

    def apply(self, x: Tensor) -> Tensor:
        """Return x (B, L) with the fixed tokens in their places."""
        return torch.where(self.mask, self.tokens, x)

    def part(self, first: int, end: int) -> Clamp:
        """Return the clamp of tokens first .. end - 1."""
        return Clamp(self.tokens[:, first:end], self.mask[:, first:end])

    @property
    def whole(self) -> bool:
        """True if every token stays fixed."""
        return bool(self.mask.all())


@dataclass(frozen=True)
class PlacedPrompt:
    """A prompt's tokens and their position."""

    name: str
    """Name in messages."""
    tokens: Sequence[int]
    first: int

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.first + len(self.tokens)


def place_prompts(prompts: Sequence[Prompt], text: TextCodec | None, length: int, option: str) -> list[PlacedPrompt]:
    """Sort prompts by position in a sample of `length` tokens, the value of `option`.

    Raises ValueError for one that cannot be read or does not fit, and for an overlap.
    """
    placed = sorted(
        (_place(prompt, text, length, f"{option}={length}") for prompt in prompts), key=lambda each: each.first
    )
    for before, after in pairwise(placed):
        if after.first < before.end:
            raise ValueError(
                f"{before.name} (tokens {before.first} to {before.end - 1}) and {after.name} (tokens {after.first} to "
                f"{after.end - 1}) overlap; set the position of the second to {before.end} or more."
            )
    return placed


def clamp_prompts(placed: Sequence[PlacedPrompt], num: int, length: int) -> Clamp:
    """Clamp the prompts' tokens in each of `num` samples."""
    tokens, mask = torch.zeros(length, dtype=torch.int64), torch.zeros(length, dtype=torch.bool)
    for each in placed:
        tokens[each.first : each.end] = torch.tensor(each.tokens)
        mask[each.first : each.end] = True
    return Clamp(tokens.repeat(num, 1), mask.repeat(num, 1))


def _place(prompt: Prompt, text: TextCodec | None, size: int, length: str) -> PlacedPrompt:
    shown = prompt.text if len(prompt.text) <= NAME_LENGTH else f"{prompt.text[: NAME_LENGTH - 3]}..."
    name = f"prompt={shown!r}"
    if text is None:
        raise ValueError(
            f"{name} cannot be read, as no tokeniser came with the data (tokenizer.json); import the data again with "
            "one, or leave the prompt out."
        )
    tokens = text.encode(prompt.text)
    if not tokens:
        raise ValueError(f"{name} holds no token; give it text, or leave it out.")
    if not -size <= prompt.position < size:
        raise ValueError(
            f"position={prompt.position} of {name} lies outside a sample ({length}); "
            f"set it to a number from {-size} to {size - 1}."
        )
    if len(tokens) > size:
        raise ValueError(
            f"{name} has {len(tokens)} tokens, more than a sample ({length}); shorten it to {size} or fewer."
        )
    first = prompt.position % size
    if first + len(tokens) > size:
        raise ValueError(
            f"{name} has {len(tokens)} tokens, and from position={prompt.position} a sample has {size - first} left "
            f"({length}); set its position to {size - len(tokens)} (or {-len(tokens)}, from the end), or shorten it."
        )
    return PlacedPrompt(name, tokens, first)
