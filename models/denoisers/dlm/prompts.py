"""Prompts: text at places of its own in a sample, as tokens that stay what they are.

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
class Given:
    """Which tokens are given, and what they are."""

    tokens: Tensor
    """(B, L) int64; what stands where none is given says nothing."""
    mask: Tensor
    """(B, L) bool."""

    def put_into(self, x: Tensor) -> Tensor:
        """x (B, L) with given tokens in their places."""
        return torch.where(self.mask, self.tokens, x)

    def part(self, first: int, end: int) -> Given:
        """That of tokens first .. end - 1."""
        return Given(self.tokens[:, first:end], self.mask[:, first:end])

    @property
    def whole(self) -> bool:
        """Whether every token is given."""
        return bool(self.mask.all())


@dataclass(frozen=True)
class Room:
    """How many tokens samples have, and the setting that says so."""

    knob: str
    length: int

    def __str__(self) -> str:
        return f"{self.knob}={self.length}"


@dataclass(frozen=True)
class PlacedPrompt:
    """A prompt's tokens and where they lie."""

    name: str
    """How messages call it."""
    tokens: Sequence[int]
    first: int

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)


def place_prompts(prompts: Sequence[Prompt], text: TextCodec | None, room: Room) -> list[PlacedPrompt]:
    """Prompts by position. Raises ValueError for one that cannot be read or does not fit, and for two that overlap."""
    placed = sorted((_place(prompt, text, room) for prompt in prompts), key=lambda each: each.first)
    for before, after in pairwise(placed):
        if after.first < before.end:
            raise ValueError(
                f"{before.name} (tokens {before.first} to {before.end - 1}) and {after.name} (tokens {after.first} to "
                f"{after.end - 1}) overlap; set the position of the second to {before.end} or more."
            )
    return placed


def given_tokens(placed: Sequence[PlacedPrompt], num: int, length: int) -> Given:
    """The prompts in each of `num` samples."""
    tokens, mask = torch.zeros(length, dtype=torch.int64), torch.zeros(length, dtype=torch.bool)
    for each in placed:
        tokens[each.first : each.end] = torch.tensor(each.tokens)
        mask[each.first : each.end] = True
    return Given(tokens.repeat(num, 1), mask.repeat(num, 1))


def _place(prompt: Prompt, text: TextCodec | None, room: Room) -> PlacedPrompt:
    shown = prompt.text if len(prompt.text) <= NAME_LENGTH else f"{prompt.text[: NAME_LENGTH - 3]}..."
    name = f"prompt={shown!r}"
    if text is None:
        raise ValueError(
            f"{name} cannot be read, as no tokeniser came with the data (tokenizer.json); import the data again with "
            "one, or leave the prompt out."
        )
    length, tokens = room.length, text.encode(prompt.text)
    if not tokens:
        raise ValueError(f"{name} holds no token; give it text, or leave it out.")
    if not -length <= prompt.position < length:
        raise ValueError(
            f"position={prompt.position} of {name} lies outside a sample ({room}); "
            f"set it to a number from {-length} to {length - 1}."
        )
    if len(tokens) > length:
        raise ValueError(
            f"{name} has {len(tokens)} tokens, more than a sample ({room}); shorten it to {length} or fewer."
        )
    first = prompt.position % length
    if first + len(tokens) > length:
        raise ValueError(
            f"{name} has {len(tokens)} tokens, and from position={prompt.position} a sample has {length - first} left "
            f"({room}); set its position to {length - len(tokens)} (or {-len(tokens)}, from the end), or shorten it."
        )
    return PlacedPrompt(name, tokens, first)
