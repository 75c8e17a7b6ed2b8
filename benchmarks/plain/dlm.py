"""A discrete diffusion language model by hand (Lou et al. 2024, arXiv:2310.16834), with rotary
attention and SwiGLU.

B batch, T tokens, V vocabulary, D width, C width of the condition.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-6


def cosines_and_sines(position: Tensor, width: int) -> Tensor:
    """Embed positions (...,) as cosines, then sines: (..., width)."""
    half = width // 2
    frequencies = 10000.0 ** (
        -torch.arange(half, dtype=torch.float32, device=position.device) / half
    )
    angles = position[..., None].float() * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys (B, H, T, K) by the angles of (T, K / 2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class HandDLMBlock(nn.Module):
    """x + gate attention, then x + gate SwiGLU, both of modulated norms."""

    def __init__(self, width: int, num_heads: int, mlp_width: int, condition_width: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.modulation = nn.Linear(condition_width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        self.norm1 = nn.RMSNorm(width, eps=EPS)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=EPS)
        self.gate = nn.Linear(width, mlp_width, bias=False)
        self.up = nn.Linear(width, mlp_width, bias=False)
        self.down = nn.Linear(mlp_width, width, bias=False)

    def forward(self, x: Tensor, condition: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Transform (B, T, D) under (B, C) to (B, T, D)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(
            6, dim=-1
        )
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            rotated(q, cos, sin), rotated(k, cos, sin), v
        )
        x = x + gate1 * self.out(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(functional.silu(self.gate(h)) * self.up(h))


class HandDLM(nn.Module):
    """Network that predicts log scores of every token."""

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int,
        depth: int,
        num_heads: int,
        mlp_width: int,
        condition_width: int,
        time_width: int,
    ) -> None:
        super().__init__()
        self.time_width, self.head_width = time_width, width // num_heads
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.kaiming_uniform_(self.embedding.weight, a=5**0.5)
        self.sigma = nn.Sequential(
            nn.Linear(time_width, condition_width),
            nn.SiLU(),
            nn.Linear(condition_width, condition_width),
            nn.SiLU(),
        )
        self.blocks = nn.ModuleList(
            HandDLMBlock(width, num_heads, mlp_width, condition_width) for _ in range(depth)
        )
        self.norm1 = nn.RMSNorm(width, eps=EPS)
        self.norm2 = nn.RMSNorm(width, eps=EPS)
        self.modulation = nn.Linear(condition_width, 2 * width)
        self.head = nn.Linear(width, vocabulary)
        for linear in (self.modulation, self.head):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Predict log scores (B, T, V), 0 at the tokens of x (B, T) int64, at noise levels sigma
        (B,).
        """
        condition = self.sigma(cosines_and_sines(sigma, self.time_width))
        positions = torch.arange(x.shape[1], device=x.device)
        cos, sin = cosines_and_sines(positions, self.head_width).chunk(2, dim=-1)
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h, condition, cos, sin)
        shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
        return self.head(self.norm2(self.norm1(h)) * (1 + scale) + shift).scatter(
            -1, x[..., None], 0.0
        )


def score_entropy_loss(network: HandDLM, x0: Tensor, sigma_min: float, sigma_max: float) -> Tensor:
    """Denoising score entropy of tokens x0 (B, T), times d sigma/dt, under a geometric schedule."""
    span = math.log(sigma_max / sigma_min)
    sigma = sigma_min * torch.exp(span * torch.rand(len(x0), device=x0.device))
    vocabulary, by_token = network.head.out_features, sigma[:, None]
    moved = torch.rand(x0.shape, device=x0.device) < -torch.expm1(-by_token)
    x = torch.where(moved, torch.randint_like(x0, vocabulary), x0)
    scores = network(x, sigma)
    growth = torch.expm1(by_token).expand(x0.shape)
    ratio, stays = growth / (growth + vocabulary), x == x0
    own, clean = (scores.exp().sum(-1) - 1), scores.gather(-1, x0[..., None])[..., 0]
    # Sums over y != x of the true ratio s_y times the score, and of s_y (ln s_y - 1); s_y is
    # `ratio` for all y where the token stays, else 1, and 1 / ratio at x0.
    weighted = (
        torch.where(stays, ratio, 1.0) * scores.sum(-1)
        + torch.where(stays, 0.0, 1 / ratio - 1) * clean
    )
    still = (vocabulary - 1) * ratio * (ratio.log() - 1)
    constant = torch.where(stays, still, (-ratio.log() - 1) / ratio - (vocabulary - 2))
    return ((own - weighted + constant) / vocabulary * span * by_token).mean()
