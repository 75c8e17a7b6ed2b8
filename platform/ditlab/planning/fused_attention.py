"""Attention on the meta device as the fused kernels of CPU and CUDA compute it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class FusedAttention(TorchFunctionMode):
    """Attention by a fused kernel: the meta device would compute queries by keys as a matrix and keep it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        return fused_attention(*args, **(kwargs or {}))


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Tensor:
    """Attend as `scaled_dot_product_attention` does, by the kernel that CPUs have; GPUs' keep as much."""
    if options.pop("enable_gqa", False):
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(repeats, -3) for each in (key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output: Tensor = kernel(query, key, value, attn_mask=attn_mask, **options)[0]
    return output
