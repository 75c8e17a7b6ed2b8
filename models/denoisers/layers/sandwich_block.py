"""Transformer blocks whose branches have a norm on both sides, scaled and shifted by a condition in between.

The sandwich norm is CogView's (Ding et al. 2021, arXiv:2105.13290). B batch, T tokens, D width, C width
of the condition.
"""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.gated_attention import GatedAttention
from denoisers.layers.rope import Rotation


class BranchModulation(NamedTuple):
    """What a condition does to one branch of a block; each (..., D)."""

    gamma: Tensor
    """Scales the branch's input."""
    beta: Tensor
    """Shifts the branch's input."""
    alpha: Tensor
    """Scales the branch's output."""


class SixWayAdaLN(nn.Module):
    """SiLU, then a Linear that gives gamma, beta and alpha of a block's two branches. No norm of its own."""

    def __init__(self, condition_width: int, width: int, gamma: float) -> None:
        """`gamma` is where gamma's bias starts; beta's starts at 0 and alpha's at 1."""
        super().__init__()
        self.initial_gamma = gamma
        self.linear = nn.Linear(condition_width, 6 * width)
        self.start()

    def start(self) -> None:
        """Puts the biases back to where they start."""
        gamma, beta, alpha = self.linear.bias.detach().unflatten(0, (2, 3, -1)).unbind(1)
        gamma.fill_(self.initial_gamma)
        beta.zero_()
        alpha.fill_(1.0)

    def forward(self, condition: Tensor) -> tuple[BranchModulation, BranchModulation]:
        """(..., C) -> the first branch's modulation and the second's."""
        gamma, beta, alpha, *second = self.linear(functional.silu(condition)).chunk(6, dim=-1)
        return BranchModulation(gamma, beta, alpha), BranchModulation(*second)


class SandwichBlock(nn.Module):
    """x + alpha norm(branch(gamma norm(x) + beta)), the branches being attention and a feed-forward network."""

    def __init__(self, attention: GatedAttention, mlp: nn.Module, width: int, condition_width: int, eps: float) -> None:
        super().__init__()
        self.adaln = SixWayAdaLN(condition_width, width, gamma=1.0)
        self.attention_norm = nn.RMSNorm(width, eps=eps)
        self.attention = attention
        self.attention_post_norm = nn.RMSNorm(width, eps=eps)
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = mlp
        self.mlp_post_norm = nn.RMSNorm(width, eps=eps)

    def forward(
        self, x: Tensor, condition: Tensor, by: Rotation | None = None, present: Tensor | None = None
    ) -> Tensor:
        """x (B, T, D), condition (B, C) -> (B, T, D); tokens that are not `present` (B, T) are not attended to."""
        attending, feeding = self.adaln(condition[:, None])
        h = attending.gamma * self.attention_norm(x) + attending.beta
        x = x + attending.alpha * self.attention_post_norm(self.attention(h, by, present))
        h = feeding.gamma * self.mlp_norm(x) + feeding.beta
        return x + feeding.alpha * self.mlp_post_norm(self.mlp(h))
