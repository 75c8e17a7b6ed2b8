"""The output layer of the language model: log scores, or their loss.

B batch, T tokens, V vocabulary, D width, C width of the condition, N segments with a condition of their own.
"""

from __future__ import annotations

from torch import Tensor, nn

from denoisers.dlm.block import NORM_EPS, modulate_segments
from denoisers.layers.adaln import Modulation, zero_linear
from denoisers.processes.discrete.chunked_score_entropy import LossTargets, TokenLosses, chunked_score_entropy


class LogScores(nn.Linear):
    """A Linear to the vocabulary, zero-initialised; the log score of the token itself is 0."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__(width, vocabulary)

    def reset_parameters(self) -> None:
        """Set weight and bias to 0."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, h: Tensor, x: Tensor, targets: LossTargets | None = None) -> Tensor | TokenLosses:  # type: ignore[override]
        """Compute log scores (B, T, V) of h (B, T, D) at x (B, T) int64; with targets their losses, chunk by chunk."""
        if targets is not None:
            # Here, not in the objective: ZeRO-3 gathers a weight for the forward pass of the module that owns it.
            return chunked_score_entropy(h, self.weight, self.bias, x, targets)
        return super().forward(h).scatter_(-1, x[..., None], 0.0)  # in place: (B, T, V) is held once


class DLMOutput(nn.Module):
    """RMSNorm, scale and shift by the noise level, then the log scores: 0 until it is trained."""

    def __init__(self, width: int, vocabulary: int, condition_width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.modulation = zero_linear(condition_width, 2 * width, 2)
        self.log_scores = LogScores(width, vocabulary)

    def forward(
        self, h: Tensor, condition: Tensor, x: Tensor, targets: LossTargets | None = None
    ) -> Tensor | TokenLosses:
        """Compute log scores (B, T, V), or with targets their losses, of h (B, T, D) under (B, N, C) at x (B, T)."""
        shift, scale = self.modulation(condition).chunk(2, dim=-1)
        return self.log_scores(modulate_segments(self.norm(h), Modulation(scale, shift)), x, targets)
