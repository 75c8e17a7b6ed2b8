"""Class labels as conditions, with a null class for classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598).

Dropping labels is a function of numbers handed in, not a module: the draws belong to whoever keys the randomness.
"""

import torch
from torch import Tensor, nn


class LabelEmbedding(nn.Module):
    """A learned vector per class, and one more, the null class, whose index is `num_classes`."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.null = num_classes
        self.vectors = nn.Embedding(num_classes + 1, width)
        # As facebookresearch/DiT: torch's N(0, 1) would drown the time embedding that these vectors are added to.
        nn.init.normal_(self.vectors.weight, std=0.02)

    def forward(self, label: Tensor) -> Tensor:
        """Class indices, (batch,) int64 -> (batch, width)."""
        return self.vectors(label)


def drop_labels(label: Tensor, uniform: Tensor, rate: float, null: int) -> Tensor:
    """`label` with the null class where `uniform` (U[0, 1), same shape) is below `rate`."""
    return torch.where(uniform < rate, null, label)
