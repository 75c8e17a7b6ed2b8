"""GETRegionDiffusion: prediction of masked regions' features from a window's other regions, in one
forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from ditlab_models.contract import ModuleGroups, ModulesByRole, NoiseSource
from ditlab_models.layers.adaln import AdaLNZeroBlock
from ditlab_models.layers.embeddings import TimeEmbedding, embed
from ditlab_models.region.spec import RegionSpec
from ditlab_models.tensors import Rows, widened

NORM_EPS = 1e-6
TOKEN_STD = 0.02
"""Initial standard deviation of tokens and of the encoder's Linears."""


class SpecialTokens(nn.Module):
    """The mask token, which replaces a masked region or is added to its noisy features, and the
    class token: (D,).
    """

    def __init__(self, width: int, corruption: Literal["mask", "ddpm"]) -> None:
        super().__init__()
        self.corruption = corruption
        self.mask = nn.Parameter(torch.empty(width))
        self.cls = nn.Parameter(torch.empty(width))
        for token in (self.mask, self.cls):
            nn.init.trunc_normal_(token, std=TOKEN_STD)

    def forward(self, regions: Tensor, mask: Tensor, positions: Tensor | None) -> Tensor:
        """Apply the mask token, add positions (R, D), prepend the class token: (B, R, D) -> (B, T,
        D).
        """
        marked = self.mask if self.corruption == "mask" else regions + self.mask
        tokens = torch.where(mask[..., None], marked, regions)
        if positions is not None:
            tokens = tokens + positions.to(tokens.dtype)  # masked regions have positions too
        return torch.cat((self.cls.to(tokens.dtype).expand(len(tokens), 1, -1), tokens), dim=1)


class RegionNetwork(nn.Module):
    """A transformer over regions whose blocks are modulated by the timestep; it predicts x0."""

    def __init__(self, spec: RegionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Linear(spec.num_features, spec.width)
        self.tokens = SpecialTokens(spec.width, spec.corruption)
        self.time = TimeEmbedding(spec.time_width, spec.width, layout="cos_sin", denominator="half")
        sizes = (spec.width, spec.num_heads, spec.mlp_width, spec.width, NORM_EPS)
        blocks = nn.ModuleList(AdaLNZeroBlock(*sizes) for _ in range(spec.depth))
        self.blocks = cast("Sequence[AdaLNZeroBlock]", blocks)
        self.final_norm = nn.LayerNorm(spec.width, eps=NORM_EPS)
        self.head = nn.Linear(spec.width, spec.num_features)
        for encoder in (self.time, blocks):
            for name, module in encoder.named_modules():
                # which starts at 0
                if isinstance(module, nn.Linear) and not name.endswith("modulation"):
                    nn.init.trunc_normal_(module.weight, std=TOKEN_STD)
                    nn.init.zeros_(module.bias)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        query_index: Tensor | None = None,
    ) -> Tensor:
        """Predict the features (B, R, F) of all regions of x (B, R, F), or (B, Q, F) of those of
        `query_index` (B, Q) int64.

        mask (B, R) bool, t (B,) int64. The values of x at masked regions are unused under
        `corruption: mask`, and x_t under `ddpm`. Regions that are not `present` (B, R) bool are
        padding.
        """
        condition = self.time(t)
        positions = None
        if self.spec.positions == "sinusoidal":
            positions = embed(
                torch.arange(x.shape[1], device=x.device), self.spec.width, dtype=torch.float64
            )
        tokens = self.tokens(self.embedding(x), mask, positions)
        key_mask = None
        if present is not None:
            key_mask = torch.cat((present.new_ones(len(present), 1), present), dim=1)
        *blocks, last = self.blocks
        for block in blocks:
            tokens = block(tokens, condition, key_mask)
        if query_index is None:
            tokens = last(tokens, condition, key_mask)[:, 1:]
        else:
            tokens = last(tokens, condition, key_mask, query_index + 1)
        return self.head(self.final_norm(tokens))

    def components(self) -> ModuleGroups:
        return {
            "embedding": [self.embedding],
            "time": [self.time],
            "blocks": self.blocks,
            "final_norm": [self.final_norm],
            "head": [self.head],
            "tokens": [self.tokens],
        }

    def role_modules(self) -> ModulesByRole:
        return {"input": [self.embedding], "head": [self.head]}

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        return self.blocks

    def compiled_modules(self) -> ModuleGroups:
        *blocks, last = self.blocks  # the last one takes the queries' index
        return {"block": blocks, "last_block": [last]}


def one_step_inputs(
    spec: RegionSpec, num_timesteps: int, x: Tensor, mask: Tensor, noise: NoiseSource
) -> tuple[Tensor, Tensor]:
    """Make the network's inputs x_t and t for a prediction in one forward pass.

    At t = 0, or under `ddpm` from pure noise at the last timestep: both estimate the expectation of
    masked regions given the others.
    """
    if spec.corruption == "mask":
        return x, torch.zeros(len(x), dtype=torch.int64, device=x.device)
    noised = torch.where(mask[..., None], noise.normal("one_pass", x.shape).to(x), x)
    return noised, torch.full((len(x),), num_timesteps - 1, device=x.device)


def evaluate_network(
    network: nn.Module,
    x_t: Tensor,
    mask: Tensor,
    t: Tensor,
    present: Tensor | None,
    rows: Rows | None,
) -> Tensor:
    """Evaluate the network in float32 or better, whatever its parameters' dtype: (B, R, F), or (B,
    Q, F) at `rows`.
    """
    dtype = next(network.parameters()).dtype
    output = network(x_t.to(dtype), mask, t, present, None if rows is None else rows.index)
    return widened(output)


def present_or_none(present: Tensor) -> Tensor | None:
    """Return `present` (B, R) bool, or None where no window is padded: attention without a mask has
    faster kernels.
    """
    return None if bool(present.all()) else present
