"""Class labels as conditions, with a null class for classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598).

Dropping labels is a function of given random numbers, not a module: the caller keys its draws.
"""

import torch
from torch import Tensor, nn


class LabelEmbedding(nn.Module):
    """A learned vector per class, and one for the null class, whose index is `num_classes`."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.null = num_classes
        self.vectors = nn.Embedding(num_classes + 1, width)
        # As facebookresearch/DiT: torch's N(0, 1) would drown the time embedding that these vectors are added to.
        nn.init.normal_(self.vectors.weight, std=0.02)

    def forward(self, label: Tensor) -> Tensor:
        """Look up class indices, (batch,) int64 -> (batch, width)."""
        return self.vectors(label)


def drop_labels(label: Tensor, uniform: Tensor, rate: float, null: int) -> Tensor:
    """Replace labels by the null class where `uniform` (U[0, 1), same shape) is below `rate`."""
    return torch.where(uniform < rate, null, label)


def add_label(condition: Tensor, embedding: LabelEmbedding | None, label: Tensor | None) -> Tensor:
    """Add the class embedding to the time embedding, (batch, width) each; without a label, that of the null class.

    A network without classes has no `embedding`: its condition is returned as it is.
    """
    if embedding is None:
        return condition
    if label is None:
        label = torch.full((len(condition),), embedding.null, dtype=torch.int64, device=condition.device)
    return condition + embedding(label)
