"""Attention under a mask: a bool tensor for torch's fused attention, or tiles for FlexAttention's kernel.

FlexAttention (Dong et al. 2024, arXiv:2412.05496) computes no tile of queries and keys in which the mask is false
throughout, and holds none of the mask but which tiles these are. Its kernels are made by torch.compile, for a GPU.

B batch, T tokens, H heads, K width of a head. Rows are queries, columns keys.
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
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

AttentionBackend = Literal["dense", "flex"]
TILE = 128
"""Queries and keys of a tile: FlexAttention's default, a multiple of the sizes that its kernels work on."""
LEAST_TOKENS = 4 * TILE
"""Tokens from which tiles pay: below, most tiles hold a true entry, and attention is a small part of a block."""
LEAST_HEAD_WIDTH = 16
"""Least head width of a matrix product on a GPU's tensor cores."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of FlexAttention's kernels."""

Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""True where a query attends to a key: (sample, head, query, key), 0-dim integers each -> 0-dim bool."""
Kernel = Callable[..., Any]


@dataclass(frozen=True)
class TiledMask:
    """Mask that FlexAttention's kernel computes where it needs it."""

    tiles: BlockMask
    """Tiles with a true entry, and those that are true throughout; the function that gives the entries of the rest."""
    kernel: Kernel
    """FlexAttention, compiled."""


AttentionMask = Tensor | TiledMask
"""Mask, true where a query attends to a key: a bool tensor that broadcasts to (B, H, T, T), or tiles."""


def attention_backend(device_type: str, dtype: torch.dtype, head_width: int, num_tokens: int) -> AttentionBackend:
    """Choose how attention of `num_tokens` tokens to each other is computed under a mask.

    A function of the device's type, the sizes and what torch can compile here; never of timing. `flex` is for training
    on CUDA: a forward pass without gradients is dense, as FlexAttention would be compiled for it once more, and
    evaluations during training compile nothing.
    """
    fits = dtype in DTYPES and head_width >= LEAST_HEAD_WIDTH and num_tokens >= LEAST_TOKENS
    is_flex = device_type == "cuda" and fits and torch.is_grad_enabled() and can_compile_kernels()
    return "flex" if is_flex else "dense"


@cache
def can_compile_kernels() -> bool:
    """Return True if this machine's torch can make kernels for its GPU: Triton and a C compiler, Ampere or newer."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang", "cc"]
    has_tools = find_spec("triton") is not None and any(shutil.which(name) for name in compilers)
    return has_tools and torch.cuda.get_device_capability() >= (8, 0)


def tiled_mask(visible: Visible, num_tokens: int, device: torch.device, batch_size: int | None = None) -> TiledMask:
    """Make the tiles of a mask of tokens over themselves, the same for all heads; `batch_size` None: and all samples.

    All entries are computed once, to find the tiles: B T T bytes for a moment.
    """
    tiles = create_block_mask(visible, batch_size, None, num_tokens, num_tokens, device, TILE)
    return TiledMask(tiles, compiled_flex_attention())


@cache
def compiled_flex_attention() -> Kernel:
    """Compile FlexAttention: eager, it would hold all scores. Within a compiled block it becomes part of the block."""
    return torch.compile(flex_attention, dynamic=True)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
    """Attend under a mask; scores are divided by sqrt(K): queries (B, H, T, K), keys and values -> (B, H, T, K)."""
    if isinstance(mask, TiledMask):
        mixed: Tensor = mask.kernel(q, k, v, block_mask=mask.tiles)
        return mixed
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
