"""A diffusion transformer by hand (Peebles and Xie 2023, arXiv:2212.09748), with ungated adaptive
norms.

B batch, C channels, S image size, N patches, D width, E = 4 D width of the condition.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def sinusoid(position: Tensor, width: int) -> Tensor:
    """Embed positions (...,) as sines, then cosines: (..., width)."""
    half = width // 2
    frequencies = 10000.0 ** (
        -torch.arange(half, dtype=position.dtype, device=position.device) / (half - 1)
    )
    angles = position[..., None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def grid_positions(rows: int, width: int) -> Tensor:
    """Embed the cells of a square grid, row by row: (rows * rows, width)."""
    axis = sinusoid(torch.arange(rows, dtype=torch.float32), width // 2)
    row = axis[:, None].expand(rows, rows, -1)
    return torch.cat((row, row.transpose(0, 1)), dim=-1).flatten(0, 1)


class HandDiTBlock(nn.Module):
    """x + attention(adaLN(x, c)), then x + MLP(adaLN(x, c))."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation1 = nn.Linear(4 * width, 2 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.modulation2 = nn.Linear(4 * width, 2 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Transform (B, N, D) under (B, E) to (B, N, D)."""
        scale, shift = self.modulation1(condition)[:, None].chunk(2, dim=-1)
        qkv = self.qkv(self.norm(x) * (1 + scale) + shift).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        scale, shift = self.modulation2(condition)[:, None].chunk(2, dim=-1)
        return x + self.mlp(self.norm(x) * (1 + scale) + shift)


class HandDiT(nn.Module):
    """Network that predicts the velocity at (x, t)."""

    positions: Tensor

    def __init__(
        self,
        *,
        image_size: int,
        channels: int,
        patch_size: int,
        width: int,
        depth: int,
        num_heads: int,
    ) -> None:
        super().__init__()
        self.width, self.patch_size, rows = width, patch_size, image_size // patch_size
        self.patches = nn.Conv2d(channels, width, kernel_size=patch_size, stride=patch_size)
        self.register_buffer("positions", grid_positions(rows, width))
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width)
        )
        self.blocks = nn.ModuleList(HandDiTBlock(width, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, patch_size**2 * channels)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predict the velocity (B, C, S, S) of x (B, C, S, S) at times t (B,)."""
        condition = self.time(sinusoid(t, self.width))
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            tokens = block(tokens, condition)
        return functional.pixel_shuffle(
            self._channels_first(self.head(self.norm(tokens))), self.patch_size
        )

    def _channels_first(self, patches: Tensor) -> Tensor:
        """Lay patches (B, N, C P P) out as a grid: (B, C P P, rows, columns)."""
        rows = int(patches.shape[1] ** 0.5)
        return patches.transpose(1, 2).unflatten(2, (rows, rows))


def flow_matching_loss(network: nn.Module, x0: Tensor) -> Tensor:
    """Mean squared error of the velocity x1 - x0 at uniform times, for images x0 (B, C, S, S) in
    [-1, 1].
    """
    x1, t = torch.randn_like(x0), torch.rand(len(x0), device=x0.device)
    at = t[:, None, None, None]
    return functional.mse_loss(network((1 - at) * x0 + at * x1, t), x1 - x0)
