"""Orthogonalisation of matrices by Newton-Schulz iterations (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic a x + b x^3 + c x^5, steep at 0: five iterations bring 0.01 to 1 near 1."""
NUM_ITERATIONS = 5
TINY = 1e-7
"""Added to the norm that a matrix is divided by; a matrix of zeros stays one."""


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring all singular values of each matrix near 1 (0.68 to 1.13); (..., rows, columns) -> the same, same dtype.

    Iterates in float32 on a CPU and in bfloat16 on a GPU, whose rounding is far below the iteration's own spread.
    """
    a, b, c = COEFFICIENTS
    x = matrices.float().flatten(0, -3) if matrices.ndim > 2 else matrices.float().unsqueeze(0)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + TINY)
    is_tall = x.shape[-2] > x.shape[-1]
    x = (x.mT.contiguous() if is_tall else x).to(torch.bfloat16 if x.is_cuda else torch.float32)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        # Sums within the products: 0.7 of the time of separate ones, at 128 rows and 128 to 512 columns on one core.
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype).reshape(matrices.shape)
