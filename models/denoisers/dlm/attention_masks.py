"""Attention masks: of a network that is trained block by block (Arriola et al. 2025, arXiv:2503.09573, section 3), and
of rows that hold several documents.

B batch, T tokens. Rows are queries, columns keys. A mask serves all layers and heads, one of blocks all samples too.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from denoisers.layers.attention import TiledMask, Visible, tiled_mask


def attends_to_all(length: int, block_size: int | None, first: int = 0) -> bool:
    """Return True if tokens first .. first + length - 1 lie in one block: none of those before them is hidden."""
    return block_size is None or first // block_size == (first + length - 1) // block_size


def document_numbers(tokens: Tensor, end: int) -> Tensor:
    """Number each token's document within its row, from 0: tokens (B, T) int64 -> the same shape.

    `end` is the token that ends a document, and belongs to it.
    """
    ends = (tokens == end).long()
    return ends.cumsum(1) - ends


def dense_mask(
    length: int, block_size: int | None, copies: int, documents: Tensor | None, device: torch.device, first: int = 0
) -> Tensor | None:
    """Make the bool mask of one copy of a row behind `first` cached tokens, or of two; None: all true.

    By blocks, (copies length, first + copies length), by documents (B, T), (B, 1, copies T, copies T), or by both;
    `block_size` None: not by blocks. Of one copy a token attends to its own block and all earlier ones. Of a clean copy
    followed by a noisy one, clean block b attends to clean blocks <= b, noisy block b to clean blocks < b and itself.
    """
    mask = None
    if block_size is not None and not (copies == 1 and attends_to_all(length, block_size, first)):
        block, last = _reach(first + length, block_size, copies, device)
        mask = (block <= last[first:, None]) | (block == block[first:, None])
    if documents is None:
        return mask
    documents = documents.repeat(1, copies)
    same = documents[:, :, None] == documents[:, None]
    return (same if mask is None else same & mask)[:, None]


def tiled_mask_of(
    length: int, block_size: int | None, copies: int, documents: Tensor | None, device: torch.device
) -> TiledMask:
    """Make the tiles of the same mask, of tokens behind no cached ones."""
    if documents is None:
        return _tiles_of_blocks(length, block_size or length, copies, device)
    reach = _reach(length, block_size or length, copies, device)
    return tiled_mask(_visible(*reach, documents.repeat(1, copies)), copies * length, device, len(documents))


@lru_cache(maxsize=8)
def _tiles_of_blocks(length: int, block_size: int, copies: int, device: torch.device) -> TiledMask:
    """Make tiles that do not depend on a batch, once a length."""
    with torch.inference_mode(False), torch.no_grad():
        return tiled_mask(_visible(*_reach(length, block_size, copies, device)), copies * length, device)


def _reach(length: int, block_size: int, copies: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Number each token's block as a key, and the last block that it attends to beside its own: (copies T,) each.

    Blocks of the noisy copy are numbered behind all of the clean one, so that none but themselves reach them. The
    numbers are tensors rather than Python's: a kernel for any length has no number of one in it.
    """
    block = torch.arange(length, dtype=torch.int32, device=device) // block_size
    if copies == 1:
        return block, block
    return torch.cat((block, block + length)), torch.cat((block, block - 1))


def _visible(block: Tensor, last: Tensor, documents: Tensor | None = None) -> Visible:
    def in_reach(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (block[key] <= last[query]) | (block[key] == block[query])

    if documents is None:
        return in_reach

    def in_document(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        within = documents[sample, query] == documents[sample, key]
        return within & ((block[key] <= last[query]) | (block[key] == block[query]))

    return in_document
