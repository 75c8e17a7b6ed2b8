"""The diffusion transformer (Peebles and Xie 2023, arXiv:2212.09748).

B batch, C channels, S image size, N patches, D width, E width of the condition (4 D unless the spec
says otherwise).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ditlab_models.contract import ModuleGroups, ModulesByRole
from ditlab_models.dit.spec import DiTSpec
from ditlab_models.layers.adaln import AdaLN, AdaLNZero, AdaLNZeroBlock, FinalAdaLN, Modulation
from ditlab_models.layers.attention import MLP, GeluKind, SelfAttention
from ditlab_models.layers.embeddings import (
    Denominator,
    FixedTable,
    LabelEmbedding,
    PatchEmbedding,
    SinusoidLayout,
    TimeEmbedding,
    add_label,
    table_2d,
    unpatchify,
)
from ditlab_models.tensors import child_groups


class ScaleShiftBlock(nn.Module):
    """x + attention(adaLN(x, c)), then x + MLP(adaLN(x, c)). No gates."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        mlp_width: int,
        condition_width: int,
        eps: float,
        mlp_eps: float | None,
        gelu: GeluKind,
    ) -> None:
        super().__init__()
        self.attention_norm = AdaLN(width, condition_width, eps)
        self.attention = SelfAttention(width, num_heads)
        self.mlp_norm = AdaLN(width, condition_width, mlp_eps or eps)
        self.mlp = MLP(width, mlp_width, gelu)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Transform (B, N, D) under (B, E) to (B, N, D)."""
        x = x + self.attention(self.attention_norm(x, condition))
        return x + self.mlp(self.mlp_norm(x, condition))

    def modulations(self, condition: Tensor) -> tuple[Modulation, Modulation]:
        """Compute the modulations before attention and before the MLP from the condition (B, E),
        for figures.
        """
        return self.attention_norm.read(condition), self.mlp_norm.read(condition)


Block = ScaleShiftBlock | AdaLNZeroBlock
BLOCKS: dict[str, type[Block]] = {"scale_shift": ScaleShiftBlock, "zero": AdaLNZeroBlock}
SINUSOIDS: dict[str, tuple[SinusoidLayout, Denominator]] = {
    "width": ("sin_cos", "half_minus_1"),
    "dit": ("cos_sin", "half"),
    "diffusers": ("cos_sin", "half_minus_1"),
}
"""Layout and denominator by `time_frequencies`."""


class ConditionEmbedding(nn.Module):
    """Embedding of time and class of one block, where each block has its own."""

    def __init__(self, spec: DiTSpec) -> None:
        super().__init__()
        self.time = time_embedding(spec)
        self.label = label_embedding(spec)

    def forward(self, t: Tensor, label: Tensor | None) -> Tensor:
        """Embed t (B,) and label (B,): (B, E)."""
        return add_label(self.time(t), self.label, label)


def time_embedding(spec: DiTSpec) -> TimeEmbedding:
    """Build the embedding of time."""
    return TimeEmbedding(
        spec.time_width, spec.condition_width, spec.time_scale, *SINUSOIDS[spec.time_frequencies]
    )


def label_embedding(spec: DiTSpec) -> LabelEmbedding | None:
    """Build the embedding of classes, if there are any."""
    if spec.num_classes is None:
        return None
    return LabelEmbedding(spec.num_classes, spec.condition_width)


class DiT(nn.Module):
    """Network that predicts the velocity, or the noise, at (x, t), of the class `label` if it has
    classes; 0 until it is trained."""

    def __init__(self, spec: DiTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.patch_embedding = PatchEmbedding(spec.channels, spec.patch_size, spec.width)
        rows = spec.num_rows
        self.positions = FixedTable(
            table_2d(rows, rows, spec.width, dtype=torch.float64, order=spec.positions)
        )
        self.time = time_embedding(spec)
        self.label = label_embedding(spec)
        if spec.embeddings == "per_block":
            self.block_embeddings = nn.ModuleList(
                ConditionEmbedding(spec) for _ in range(spec.depth - 1)
            )
        blocks = nn.ModuleList(
            BLOCKS[spec.adaln](
                spec.width,
                spec.num_heads,
                spec.mlp_width,
                spec.condition_width,
                spec.norm_eps,
                spec.mlp_norm_eps,
                spec.gelu,
            )
            for _ in range(spec.depth)
        )
        self.blocks = cast("Sequence[Block]", blocks)
        self.final_norm: nn.LayerNorm | FinalAdaLN
        if spec.final_norm == "affine":
            self.final_norm = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        else:
            self.final_norm = FinalAdaLN(spec.width, spec.condition_width, spec.norm_eps)
        self.head = nn.Linear(spec.width, spec.patch_size**2 * spec.head_channels)
        if spec.initial_weights == "dit":
            self._initialise_as_published()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def _initialise_as_published(self) -> None:
        """Draw weights as facebookresearch/DiT does; class vectors are N(0, 0.02^2) already."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                # a kernel is a Linear of a patch
                nn.init.xavier_uniform_(module.weight.detach().flatten(1))
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, TimeEmbedding):
                nn.init.normal_(module.hidden.weight, std=0.02)
                nn.init.normal_(module.out.weight, std=0.02)
            elif isinstance(module, (AdaLNZero, FinalAdaLN)):
                nn.init.zeros_(module.modulation.weight)

    def condition(self, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Embed t (B,) and label (B,): (B, E). Without a label, a conditional network gets the null
        class.

        It is that of the head, and of the first block where each block has an embedding of its own.
        """
        return add_label(self.time(t), self.label, label)

    def block_conditions(
        self, condition: Tensor, t: Tensor, label: Tensor | None = None
    ) -> list[Tensor]:
        """The condition of each block, (B, E) each, that of the first given."""
        if self.spec.embeddings == "shared":
            return [condition] * len(self.blocks)
        return [condition, *(embedding(t, label) for embedding in self.block_embeddings)]

    def embed(self, x: Tensor) -> Tensor:
        """Embed patches with their positions: (B, C, S, S) -> (B, N, D)."""
        # The weights' dtype, not the tokens': under autocast the sum, and so the residual stream,
        # stays float32.
        # The table first: a sum has the memory layout of its first operand, and that of patches
        # has the width before the tokens, which every norm would copy.
        return self.positions.values(self.head.weight.dtype) + self.patch_embedding(x)

    def forward(self, x: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Predict the velocity (B, C, S, S) of x (B, C, S, S) at times t (B,) in [0, 1], label (B,)
        int64.

        Under the Gaussian process t is a timestep, and the output its noise; (B, 2 C, S, S) with a
        learned variance.
        """
        spec = self.spec
        condition = self.condition(t, label)
        tokens = self.embed(x)
        for block, own_condition in zip(
            self.blocks, self.block_conditions(condition, t, label), strict=True
        ):
            tokens = block(tokens, own_condition)
        if isinstance(self.final_norm, FinalAdaLN):
            normed = self.final_norm(tokens, condition)
        else:
            normed = self.final_norm(tokens)
        output = unpatchify(self.head(normed), spec.patch_size, spec.num_rows, spec.head_channels)
        if spec.variance_channels == "unused":
            return output[:, : spec.channels]
        return output

    def components(self) -> ModuleGroups:
        return child_groups(self)

    def role_modules(self) -> ModulesByRole:
        return {"input": [self.patch_embedding], "head": [self.head]}

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        return self.blocks

    def compiled_modules(self) -> ModuleGroups:
        return {"block": self.blocks}
