"""Score entropy of a network's whole output, as it is written (Lou et al. 2024, arXiv:2310.16834,
algorithm 1).
"""

from torch import Tensor

from ditlab_models.processes.score_entropy import ScoreName, noisy_tokens
from ditlab_models.tensors import wide_dtype


def score_entropy(
    output: Tensor, x: Tensor, x0: Tensor, sigma: Tensor, score: ScoreName = "log"
) -> Tensor:
    """Loss of each token in nats per unit of sigma, (...): times d sigma/dt it is nats per unit of
    time.

    output: (..., V); its entry at the token itself counts as 0. x, x0: (...) int64. In float32 or
    better.
    """
    vocabulary = output.shape[-1]
    wide = wide_dtype(output)
    _, _, every, clean, constant, _ = noisy_tokens(x, x0, sigma.to(wide), sigma, vocabulary)
    output = output.to(wide).scatter(-1, x[..., None], 0.0)
    if score == "softmax":
        positive = negative = output.softmax(-1)
    else:
        positive, negative = output.exp(), output
    # sums over all tokens but x, divided by V
    p, n = (
        each.mean(-1) - each.gather(-1, x[..., None])[..., 0] / vocabulary
        for each in (positive, negative)
    )
    at_clean = negative.gather(-1, x0[..., None])[..., 0]
    return p - (every * n + clean * at_clean) + constant
