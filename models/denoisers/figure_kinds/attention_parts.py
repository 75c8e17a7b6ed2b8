"""Parts of attention as a network computes them, caught in a forward pass, for figures.

N tokens, D width, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.layers.attention import SelfAttention
from denoisers.layers.gated_attention import GatedAttention
from denoisers.layers.rope import rotate


@dataclass(frozen=True)
class AttentionParts:
    """One attention layer's computation for the first sample of a batch."""

    x: np.ndarray
    """(N, D), normalised and modulated."""
    q: np.ndarray
    """(H, N, K), turned by their positions where the layer does so."""
    k: np.ndarray
    v: np.ndarray
    scores: np.ndarray
    """(H, queries N, keys N), NaN where a query does not attend to a key."""
    weights: np.ndarray
    """(H, queries N, keys N): the softmax of the scores; rows sum to 1."""

    @property
    def mixed(self) -> np.ndarray:
        """Weighted means of the values: (H, N, K)."""
        mixed: np.ndarray = self.weights @ self.v
        return mixed


def catch_attention(attentions: Sequence[nn.Module], run: Callable[[], object]) -> list[AttentionParts]:
    """Call `run`, which passes each of the layers once, and return their parts in the order of `attentions`."""
    calls: dict[nn.Module, dict[str, Any]] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[module] = dict(signature(module.forward).bind(*args, **kwargs).arguments)

    handles = [attention.register_forward_pre_hook(keep, with_kwargs=True) for attention in attentions]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return [_parts(attention, calls[attention]) for attention in attentions]


def _parts(attention: nn.Module, call: dict[str, Any]) -> AttentionParts:
    x: Tensor = call["x"][:1]
    rope = call.get("rope")
    if isinstance(attention, SelfAttention):
        q, k, v = attention.heads(x)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mask = call.get("mask")
    else:
        assert isinstance(attention, GatedAttention), f"{type(attention).__name__} has no parts to draw"
        if rope is not None:
            rope = type(rope)(*(each[:1] for each in rope))
        q, k, v = attention.heads(x, rope)
        k, v = (each.repeat_interleave(attention.num_heads // attention.num_kv_heads, dim=1) for each in (k, v))
        scores = q @ k.transpose(-2, -1)
        mask = call.get("key_mask")
        mask = None if mask is None else mask[:1, None, None]
    scores = scores.detach().float()
    if mask is not None:
        allowed = (mask[:1] if mask.ndim == 4 else mask).expand(scores.shape)
        scores = torch.where(allowed, scores, torch.full_like(scores, -torch.inf))
    weights = scores.softmax(dim=-1)
    shown = torch.where(scores.isfinite(), scores, torch.full_like(scores, torch.nan))
    arrays = (each.detach().float().cpu().numpy()[0] for each in (x, q, k, v, shown, weights))
    return AttentionParts(*arrays)


def mean_distance(weights: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Mean distance between a query and what it attends to, by head: (H, N, N), (N, N) -> (H,)."""
    mean: np.ndarray = (weights * distance).sum(axis=-1).mean(axis=-1)
    return mean
