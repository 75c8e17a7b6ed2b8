"""Attention masks: of a network that is trained block by block (Arriola et al. 2025, arXiv:2503.09573, section 3), and
of rows that hold several documents.

B batch, T tokens. Rows are queries, columns keys. A mask serves all layers and heads, one of blocks all samples too.
"""

from __future__ import annotations

import torch
from torch import Tensor


def block_causal_mask(
    length: int, block_size: int, first: int = 0, device: torch.device | None = None
) -> Tensor | None:
    """Mask of tokens first .. first + length - 1 over all from 0 on, (length, first + length) bool; None: all true.

    A token attends to its own block and all earlier ones.
    """
    end = first + length
    if first // block_size == (end - 1) // block_size:
        return None
    block = torch.arange(end, device=device) // block_size
    return block[None] <= block[first:, None]


def two_copy_mask(length: int, block_size: int, device: torch.device | None = None) -> Tensor:
    """Mask of a clean copy of a sequence followed by a noisy one, (2 length, 2 length) bool.

    Clean block b attends to clean blocks <= b; noisy block b to clean blocks < b and to itself.
    """
    block = torch.arange(length, device=device) // block_size
    query, key = block[:, None], block[None]
    clean = torch.cat((key <= query, torch.zeros_like(key == query)), dim=1)
    noisy = torch.cat((key < query, key == query), dim=1)
    return torch.cat((clean, noisy))


def document_numbers(tokens: Tensor, end: int) -> Tensor:
    """Number each token's document within its row, from 0: tokens (B, T) int64 -> the same shape.

    `end` is the token that ends a document, and belongs to it.
    """
    ends = (tokens == end).long()
    return ends.cumsum(1) - ends


def document_mask(documents: Tensor, mask: Tensor | None = None, copies: int = 1) -> Tensor:
    """Mask of tokens that attend within their document alone, (B, 1, copies T, copies T) bool.

    documents: (B, T) numbers. Combined with `mask` (copies T, copies T), which is over `copies` of a row end to end.
    """
    documents = documents.repeat(1, copies)
    same = documents[:, :, None] == documents[:, None]
    return (same if mask is None else same & mask)[:, None]
