"""A transformer over regions by hand, modulated by the timestep (adaLN-Zero: Peebles and Xie 2023,
arXiv:2212.09748).

B batch, R regions, F features, T = R + 1 tokens (a class token stands before the regions), D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.plain.dlm import cosines_and_sines

EPS = 1e-6
STEPS = 1000


class HandRegionBlock(nn.Module):
    """x + gate attention, then x + gate MLP, both of modulated norms."""

    def __init__(self, width: int, num_heads: int, mlp_width: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(width, eps=EPS, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        for parameter in self.modulation.parameters():
            nn.init.zeros_(parameter)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_width), nn.GELU(), nn.Linear(mlp_width, width)
        )

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Transform (B, T, D) under (B, D) to (B, T, D)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(
            6, dim=-1
        )
        qkv = self.qkv(self.norm(x) * (1 + scale1) + shift1).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + gate1 * self.out(mixed.transpose(1, 2).flatten(2))
        return x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)


class HandRegionNetwork(nn.Module):
    """Network that predicts the features of all regions from those that are not masked."""

    def __init__(
        self,
        *,
        num_features: int,
        width: int,
        depth: int,
        num_heads: int,
        mlp_width: int,
        time_width: int,
        has_positions: bool,
    ) -> None:
        super().__init__()
        self.time_width, self.has_positions = time_width, has_positions
        self.embedding = nn.Linear(num_features, width)
        self.mask_token = nn.Parameter(0.02 * torch.randn(width))
        self.class_token = nn.Parameter(0.02 * torch.randn(width))
        self.time = nn.Sequential(nn.Linear(time_width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            HandRegionBlock(width, num_heads, mlp_width) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.head = nn.Linear(width, num_features)

    def forward(self, x: Tensor, mask: Tensor, t: Tensor) -> Tensor:
        """Predict (B, R, F) of x (B, R, F), hidden where `mask` (B, R) bool, at timesteps t
        (B,).
        """
        condition = self.time(cosines_and_sines(t, self.time_width))
        tokens = torch.where(mask[..., None], self.mask_token, self.embedding(x))
        if self.has_positions:
            positions = torch.arange(x.shape[1], device=x.device)
            tokens = tokens + cosines_and_sines(positions, tokens.shape[-1])
        tokens = torch.cat((self.class_token.expand(len(tokens), 1, -1), tokens), dim=1)
        for block in self.blocks:
            tokens = block(tokens, condition)
        return self.head(self.norm(tokens[:, 1:]))


def masked_error(network: nn.Module, x: Tensor, ratio: float) -> Tensor:
    """Mean over windows of the squared error of masked regions, for features x (B, R, F)."""
    mask = torch.rand(x.shape[:2], device=x.device) < ratio
    t = torch.randint(STEPS, (len(x),), device=x.device)
    squared = functional.mse_loss(network(x, mask, t), x, reduction="none").mean(-1)
    return ((squared * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
