"""The diffusion transformer (Peebles and Xie 2023, arXiv:2212.09748).

B batch, C channels, S image size, N patches, D width, E = 4 D width of the condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from denoisers.contract import Role
from denoisers.dit.spec import DiTSpec
from denoisers.layers.adaln import AdaLN, AdaLNZeroBlock, Modulation
from denoisers.layers.attention import MLP, SelfAttention
from denoisers.layers.embeddings import (
    FixedTable,
    LabelEmbedding,
    PatchEmbedding,
    TimeEmbedding,
    add_label,
    table_2d,
    unpatchify,
)
from denoisers.tensors import child_groups


class ScaleShiftBlock(nn.Module):
    """x + attention(adaLN(x, c)), then x + MLP(adaLN(x, c)). No gates."""

    def __init__(self, width: int, num_heads: int, mlp_width: int, condition_width: int) -> None:
        super().__init__()
        self.attention_norm = AdaLN(width, condition_width)
        self.attention = SelfAttention(width, num_heads)
        self.mlp_norm = AdaLN(width, condition_width)
        self.mlp = MLP(width, mlp_width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Transform (B, N, D) under (B, E) to (B, N, D)."""
        x = x + self.attention(self.attention_norm(x, condition))
        return x + self.mlp(self.mlp_norm(x, condition))

    def modulations(self, condition: Tensor) -> tuple[Modulation, Modulation]:
        """Compute the modulations before attention and before the MLP from the condition (B, E), for figures."""
        return self.attention_norm.read(condition), self.mlp_norm.read(condition)


Block = ScaleShiftBlock | AdaLNZeroBlock
BLOCKS: dict[str, type[Block]] = {"scale_shift": ScaleShiftBlock, "zero": AdaLNZeroBlock}


class DiT(nn.Module):
    """Network that predicts the velocity at (x, t), of the class `label` if it has classes; 0 until it is trained."""

    def __init__(self, spec: DiTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.patch_embedding = PatchEmbedding(spec.channels, spec.patch_size, spec.width)
        self.positions = FixedTable(table_2d(spec.num_rows, spec.num_rows, spec.width, dtype=torch.float64))
        self.time = TimeEmbedding(spec.width, spec.condition_width, spec.time_scale)
        self.label = None if spec.num_classes is None else LabelEmbedding(spec.num_classes, spec.condition_width)
        sizes = (spec.width, spec.num_heads, spec.mlp_width, spec.condition_width)
        self.blocks = cast("Sequence[Block]", nn.ModuleList(BLOCKS[spec.adaln](*sizes) for _ in range(spec.depth)))
        self.final_norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.patch_size**2 * spec.channels)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def condition(self, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Embed t (B,) and label (B,): (B, E). Without a label, a conditional network gets the null class."""
        return add_label(self.time(t), self.label, label)

    def embed(self, x: Tensor) -> Tensor:
        """Embed patches with their positions: (B, C, S, S) -> (B, N, D)."""
        # The weights' dtype, not the tokens': under autocast the sum, and so the residual stream, stays float32.
        return self.patch_embedding(x) + self.positions.values(self.head.weight.dtype)

    def forward(self, x: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Predict the velocity (B, C, S, S) of x (B, C, S, S) at times t (B,) in [0, 1], label (B,) int64."""
        condition = self.condition(t, label)
        tokens = self.embed(x)
        for block in self.blocks:
            tokens = block(tokens, condition)
        patches = self.head(self.final_norm(tokens))  # (B, N, P * P * C)
        return unpatchify(patches, self.spec.patch_size, self.spec.num_rows, self.spec.channels)

    def components(self) -> dict[str, Sequence[nn.Module]]:
        return child_groups(self)

    def role_modules(self) -> Mapping[Role, Sequence[nn.Module]]:
        return {"input": [self.patch_embedding], "head": [self.head]}

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        return self.blocks

    def compiled_modules(self) -> Mapping[str, Sequence[nn.Module]]:
        return {"block": self.blocks}
