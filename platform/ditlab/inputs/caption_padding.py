"""Padding of captions: to the longest of a batch, not to that of the store."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from denoisers.contract import ANY, BatchField

MULTIPLE = 16
"""Padded lengths are multiples of this, or the store's.

Attention in half precision takes its fast kernels at multiples of 8, and every new length costs a compilation or a
search for kernels: a column of 512 bytes has 32 lengths so, at eight bytes of padding a caption on average.
"""
BYTES = ("caption",)
"""Fields of a length of their own that end with zeros."""
FEATURES, MASK = ("text", "text_mask"), "text_mask"
"""Fields that are as long as the mask is true."""


def cut_padding(raw: Mapping[str, Tensor], fields: Sequence[BatchField]) -> dict[str, Tensor]:
    """Return rows as they are stored, (num, length, ...), without the padding that all of them have.

    Fields of a fixed length stay as they are, and so do all others than captions and their features.
    """
    free = {field.name for field in fields if field.shape[:1] == (ANY,)} & raw.keys()
    cut = dict(raw)
    for group, mark in ((BYTES, BYTES[0]), (FEATURES, MASK)):
        if free.issuperset(group):
            length = padded_length(raw[mark] != 0)
            cut |= {name: raw[name][:, :length] for name in group}
    return cut


def padded_length(used: Tensor) -> int:
    """Return the length to which rows are padded: `used` (num, length) bool is true for what is no padding."""
    places = torch.nonzero(used.any(dim=0))
    longest = int(places[-1]) + 1 if len(places) else 1
    return min(-(-longest // MULTIPLE) * MULTIPLE, used.shape[1])
