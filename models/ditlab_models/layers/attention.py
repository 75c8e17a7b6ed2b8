"""The two halves of a transformer block: multi-head self-attention, and the feed-forward half,
plain or gated.

Attention is that of Vaswani et al. 2017 (arXiv:1706.03762, eq. 1): masked, gated, with a cache of
keys and values. A mask is a bool tensor for torch's fused attention, or tiles for FlexAttention's
kernel.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ditlab_models.layers.rope import Rotation, rotate
from ditlab_models.tensors import wide_dtype

GateKind = Literal["headwise", "elementwise"]
GeluKind = Literal["exact", "tanh"]
AttentionBackend = Literal["dense", "flex"]
TILE = 128
"""Queries and keys of a tile: FlexAttention's default, a multiple of the sizes that its kernels
work on.
"""
LEAST_TOKENS = 4 * TILE
"""Tokens from which tiles pay: below, most tiles hold a true entry, and attention is a small part
of a block.
"""
LEAST_HEAD_WIDTH = 16
"""Least head width of a matrix product on a GPU's tensor cores."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of FlexAttention's kernels."""
Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""True where a query attends to a key: (sample, head, query, key), 0-dim integers each -> 0-dim
bool.
"""
Kernel = Callable[..., Any]


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the last axis into heads: (B, T, H * K) -> (B, H, T, K)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def attend_to(key_mask: Tensor | None) -> Tensor | None:
    """The attention mask (B, 1, 1, T) under which every query attends to the keys of `key_mask` (B,
    T) bool.
    """
    return None if key_mask is None else key_mask[:, None, None]


class FusedLinear(nn.Linear):
    """Linear whose weight consists of `fused_parts` maps of equal size, one below the other: an
    optimiser takes each alone."""

    def __init__(self, inputs: int, outputs: int, fused_parts: int, bias: bool = True) -> None:
        assert outputs % fused_parts == 0, f"{outputs} outputs do not split into {fused_parts} maps"
        super().__init__(inputs, outputs, bias=bias)
        self.fused_parts = fused_parts


class QKV(FusedLinear):
    """One Linear for queries, keys and values; the rows of its weight are those of q, then of k,
    then of v.
    """

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__(width, 3 * width, 3, bias=bias)

    def forward(  # type: ignore[override]
        self, x: Tensor, queries: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Project x (B, T, D) to queries, keys and values in one tensor (B, T, 3 D), as libraries
        expect of a Linear that they adapt.

        With `queries` (B, Q, D) these are projected to queries, x to keys and values, and the three
        are returned.
        """
        if queries is None:
            return super().forward(x)
        # Here rather than in the block: ZeRO-3 gathers a weight for the forward pass of the module
        # that owns it.
        width = x.shape[-1]
        q_bias = None
        kv_bias = None
        if self.bias is not None:
            q_bias = self.bias[:width]
            kv_bias = self.bias[width:]
        q = functional.linear(queries, self.weight[:width], q_bias)
        k, v = functional.linear(x, self.weight[width:], kv_bias).chunk(2, dim=-1)
        return q, k, v


class SelfAttention(nn.Module):
    """Attention of every token to every token; scores are divided by sqrt(K). Both projections have
    biases, or none.
    """

    def __init__(self, width: int, num_heads: int, bias: bool = True) -> None:
        super().__init__()
        assert width % num_heads == 0, f"width {width} does not split into {num_heads} heads"
        self.num_heads = num_heads
        self.qkv = QKV(width, bias)
        self.out = nn.Linear(width, width, bias=bias)

    def heads(self, x: Tensor, queries: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, Q, K), keys and values (B, H, T, K) of x (B, T, H * K)."""
        projected = self.qkv(x, queries)
        if isinstance(projected, Tensor):
            projected = projected.chunk(3, dim=-1)
        q, k, v = (split_heads(each, self.num_heads) for each in projected)
        return q, k, v

    def forward(
        self,
        x: Tensor,
        queries: Tensor | None = None,
        mask: AttentionMask | None = None,
        rope: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, T, H * K) -> the same shape, or one output for each token of `queries` (B, Q, H *
        K).

        `mask` is true where a query attends to a key: bool, broadcast to (B, H, Q, S), S the tokens
        committed in the `cache` and the T of x; or tiles, which are T by T and so go with neither
        `queries` nor committed tokens. `rope` turns queries and keys. Keys and values of x are
        written behind the committed ones, uncommitted.
        """
        q, k, v = self.heads(x, queries)
        if rope is not None:
            q = rotate(q, rope)
            k = rotate(k, rope)
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed = masked_attention(q, k, v, mask)  # (B, H, Q, K)
        return self.out(mixed.transpose(1, 2).flatten(2))


class GatedAttention(nn.Module):
    """Attention of every token to every token of a key mask. No projection has a bias."""

    def __init__(
        self, width: int, num_heads: int, num_kv_heads: int, gate: GateKind = "headwise"
    ) -> None:
        super().__init__()
        assert width % num_heads == 0, f"width {width} does not split into {num_heads} heads"
        assert num_heads % num_kv_heads == 0, (
            f"{num_heads} heads do not share {num_kv_heads} evenly"
        )
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        head_width = width // num_heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, num_kv_heads * head_width, bias=False)
        self.value = nn.Linear(width, num_kv_heads * head_width, bias=False)
        self.gate = nn.Linear(width, num_heads if gate == "headwise" else width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.temperature = nn.Parameter(torch.full((1,), head_width**0.5))
        self.initialise()

    def initialise(self) -> None:
        """Set the gate's weight to 0: the gate is 0.5, whatever the input."""
        nn.init.zeros_(self.gate.weight)

    def forward(
        self, x: Tensor, rope: Rotation | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        """x (B, T, H * K) -> the same shape. `key_mask` (B, T) bool is false for tokens that are
        not attended to.
        """
        q, k, v = self.heads(x, rope)
        mask = attend_to(key_mask)
        if mask is not None:
            # On a GPU only the flash kernel shares heads, and it takes no masks: shared heads with
            # a mask would fall back on the kernel that holds the whole (T, T) of scores.
            k, v = (
                each.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
                for each in (k, v)
            )
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=1.0, enable_gqa=k.shape[1] != self.num_heads
        )  # (B, H, T, K)
        return self.out((mixed.transpose(1, 2) * self.gates(x)).flatten(2))

    def heads(self, x: Tensor, rope: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values (B, G, T, K); normed in float32 at least, and q k
        is the score.
        """
        q = split_heads(self.query(x), self.num_heads)
        k = split_heads(self.key(x), self.num_kv_heads)
        v = split_heads(self.value(x), self.num_kv_heads)
        dtype = wide_dtype(v)
        q, k = (functional.normalize(each.to(dtype), dim=-1) for each in (q, k))
        if rope is not None:
            q, k = (rotate(each, rope, "neighbours") for each in (q, k))
        return (q * self.temperature.to(dtype)).to(v.dtype), k.to(v.dtype), v

    def gates(self, x: Tensor) -> Tensor:
        """Factors in (0, 1) of the heads' outputs: (B, T, H * K) -> (B, T, H, 1), or (B, T, H, K)
        if elementwise.
        """
        return self.gate(x).sigmoid().unflatten(-1, (self.num_heads, -1))


@dataclass(frozen=True)
class TiledMask:
    """Mask that FlexAttention's kernel computes where it needs it."""

    tiles: BlockMask
    """Tiles with a true entry, and those that are true throughout; the function that gives the
    entries of the rest.
    """
    kernel: Kernel
    """FlexAttention, compiled."""


AttentionMask = Tensor | TiledMask
"""Mask, true where a query attends to a key: a bool tensor that broadcasts to (B, H, Q, S), or
tiles.
"""


def attention_backend(
    device_type: str, dtype: torch.dtype, head_width: int, num_tokens: int
) -> AttentionBackend:
    """Choose how attention of `num_tokens` tokens to each other is computed under a mask: never by
    timing.

    `flex` is for training on CUDA: evaluations during training compile nothing.
    """
    fits = dtype in DTYPES and head_width >= LEAST_HEAD_WIDTH and num_tokens >= LEAST_TOKENS
    if device_type != "cuda" or not fits or not torch.is_grad_enabled():
        return "dense"
    return "flex" if can_compile_kernels() else "dense"


@cache
def can_compile_kernels() -> bool:
    """Return True if this machine's torch can make kernels for its GPU: Triton and a C compiler,
    Ampere or newer.
    """
    chosen = os.environ.get("CC")
    compilers = [chosen] if chosen else ["gcc", "clang", "cc"]
    has_tools = find_spec("triton") is not None and any(shutil.which(name) for name in compilers)
    return has_tools and torch.cuda.get_device_capability() >= (8, 0)


def tiled_mask(
    visible: Visible, num_tokens: int, device: torch.device, batch_size: int | None = None
) -> TiledMask:
    """Make the tiles of a mask of tokens over themselves, for all heads; `batch_size` None: for all
    samples.
    """
    tiles = create_block_mask(visible, batch_size, None, num_tokens, num_tokens, device, TILE)
    return TiledMask(tiles, compiled_flex_attention())


@cache
def compiled_flex_attention() -> Kernel:
    """Compile FlexAttention: eager, it would hold all scores. Within a compiled block it becomes
    part of the block.
    """
    return torch.compile(flex_attention, dynamic=True)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
    """Attend under a mask; scores are divided by sqrt(K): queries (B, H, T, K), keys and values ->
    (B, H, T, K).
    """
    if isinstance(mask, TiledMask):
        mixed: Tensor = mask.kernel(q, k, v, block_mask=mask.tiles)
        return mixed
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class LayerCache:
    """Keys, turned to their absolute positions, and values of one attention layer."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write (B, H, T, K) behind the committed tokens; return views of both together, (B, H,
        length + T, K).

        The next forward pass overwrites these tokens, unless they are committed. The first one
        allocates the memory.
        """
        if self._keys is None or self._values is None:
            shape = (*keys.shape[:2], self.capacity, keys.shape[-1])
            self._keys = keys.new_empty(shape)
            self._values = values.new_empty(shape)
        end = self.length + keys.shape[2]
        assert end <= self.capacity, f"{end} tokens do not fit into a cache of {self.capacity}"
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        return self._keys[:, :, :end], self._values[:, :, :end]


class KVCache:
    """One `LayerCache` for each block of a network; for sampling, without gradients."""

    def __init__(self, depth: int, capacity: int) -> None:
        self.layers = tuple(LayerCache(capacity) for _ in range(depth))

    @property
    def length(self) -> int:
        """Number of committed tokens: the position of the next forward pass' first token."""
        return self.layers[0].length

    def commit(self, num: int) -> None:
        """Keep the first `num` tokens of the last forward pass."""
        for layer in self.layers:
            layer.length += num


class MLP(nn.Module):
    """Linear -> GELU, exact or its tanh approximation -> Linear."""

    def __init__(self, width: int, hidden_width: int, gelu: GeluKind = "exact") -> None:
        super().__init__()
        self.approximate = "none" if gelu == "exact" else "tanh"
        self.hidden = nn.Linear(width, hidden_width)
        self.out = nn.Linear(hidden_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (..., width) to the same shape."""
        return self.out(functional.gelu(self.hidden(x), approximate=self.approximate))


class SwiGLU(nn.Module):
    """down(SiLU(gate(x)) * up(x)), three Linears without biases (Shazeer 2020, arXiv:2002.05202,
    eq. 6).
    """

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden_width, bias=False)
        self.up = nn.Linear(width, hidden_width, bias=False)
        self.down = nn.Linear(hidden_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (..., width) to the same shape."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))
