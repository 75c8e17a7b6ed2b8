"""The published DiT in one file, for comparison: its modules, names and layout, after the paper
(Peebles and Xie 2023, arXiv:2212.09748) and the names of the released weights. Written for these
tests; no code of the release is in it."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


def frequency_embedding(t, num=256):
    """cos, then sin, of t 10000^(-j / 128): (B,) -> (B, 256)."""
    omega = torch.exp(-math.log(10000) * torch.arange(num // 2, dtype=torch.float64) / (num // 2))
    angles = t.double()[:, None] * omega
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def position_table(rows, width):
    """sin and cos of the column, then of the row, frequencies 10000^(-i / (width / 4)): (rows^2,
    width).
    """
    omega = 10000 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    cells = []
    for row in range(rows):
        for column in range(rows):
            cells.append(
                torch.cat([f(at * omega) for at in (column, row) for f in (torch.sin, torch.cos)])
            )
    return torch.stack(cells)


class Block(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.attn = nn.ModuleDict(
            {"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)}
        )
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)}
        )
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        num, tokens, width = x.shape
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.adaLN_modulation(c)[
            :, None
        ].chunk(6, dim=-1)
        h = functional.layer_norm(x, (width,), eps=1e-6) * (1 + scale) + shift
        q, k, v = (
            self.attn["qkv"](h).reshape(num, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        )
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + gate * self.attn["proj"]((weights @ v).transpose(1, 2).reshape(num, tokens, width))
        h = functional.layer_norm(x, (width,), eps=1e-6) * (1 + mlp_scale) + mlp_shift
        return x + mlp_gate * self.mlp["fc2"](
            functional.gelu(self.mlp["fc1"](h), approximate="tanh")
        )


class PublishedDiT(nn.Module):
    """`learn_sigma`: 2 C channels come out; `keeps_sigma=False` drops the second half of them, as
    SiT does.
    """

    def __init__(
        self,
        size,
        patch,
        channels,
        width,
        depth,
        num_heads,
        classes,
        keeps_sigma=True,
    ):
        super().__init__()
        self.patch, self.channels, self.keeps_sigma = patch, channels, keeps_sigma
        self.x_embedder = nn.ModuleDict({"proj": nn.Conv2d(channels, width, patch, patch)})
        self.t_embedder = nn.ModuleDict(
            {"mlp": nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))}
        )
        self.y_embedder = nn.ModuleDict({"embedding_table": nn.Embedding(classes + 1, width)})
        self.pos_embed = nn.Parameter(
            position_table(size // patch, width)[None].float(), requires_grad=False
        )
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(depth))
        self.final_layer = nn.ModuleDict(
            {
                "linear": nn.Linear(width, patch * patch * 2 * channels),
                "adaLN_modulation": nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width)),
            }
        )

    def forward(self, x, t, y):
        num, _, size, _ = x.shape
        rows, patch = size // self.patch, self.patch
        tokens = self.x_embedder["proj"](x).flatten(2).transpose(1, 2) + self.pos_embed
        c = self.t_embedder["mlp"](frequency_embedding(t).to(x)) + self.y_embedder[
            "embedding_table"
        ](y)
        for block in self.blocks:
            tokens = block(tokens, c)
        shift, scale = self.final_layer["adaLN_modulation"](c)[:, None].chunk(2, dim=-1)
        tokens = functional.layer_norm(tokens, tokens.shape[-1:], eps=1e-6) * (1 + scale) + shift
        patches = self.final_layer["linear"](tokens).reshape(
            num, rows, rows, patch, patch, 2 * self.channels
        )
        image = patches.permute(0, 5, 1, 3, 2, 4).reshape(num, 2 * self.channels, size, size)
        return image if self.keeps_sigma else image.chunk(2, dim=1)[0]
