"""PixelHDM: a transformer over patches and text, and one over pixels that it conditions (see
README.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.contract import Conditions, ModuleGroups, ModulesByRole
from ditlab_models.layers.adaln import GatedModulation, SandwichBlock, SixWayAdaLN
from ditlab_models.layers.attention import GatedAttention, SwiGLU
from ditlab_models.layers.embeddings import TimeEmbedding, patchify, unpatchify
from ditlab_models.layers.rope import MRoPE, Rotation
from ditlab_models.pixelhdm.spec import CHANNELS, PixelHDMSpec
from ditlab_models.pixelhdm.text_encoder import (
    TextCondition,
    TextEncoder,
    build_attention,
    drop_captions,
)
from ditlab_models.tensors import child_groups, wide_dtype

TIME_SCALE = 1000.0
EMBEDDING_STD = 0.02
EXPAND_GAIN = 0.1
"""Xavier gain of a compaction's expansion: a pixel block starts near the identity."""


class PixelHDM(nn.Module):
    """Network that predicts the velocity, or the image, at (x, t) under a caption."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.spec = spec
        self.text_encoder = TextEncoder(spec) if spec.text_encoder == "learned" else None
        self.positions = LearnedPositions(spec) if spec.positions == "learned" else None
        # An image's text position is a text's length: one more than the last token's.
        axes = (spec.text_length + 1, spec.max_patches, spec.max_patches)
        self.rope: MRoPE | None = None
        if spec.positions == "mrope":
            self.rope = MRoPE(axes, spec.mrope_widths, spec.rope_base)
        self.patch_embedding = BottleneckEmbedding(spec)
        self.pixel_embedding = nn.Linear(CHANNELS, spec.pixel_width)
        self.time = TimeEmbedding(spec.time_width, spec.width, TIME_SCALE, denominator="half")
        # Joint attention over text and patches and a SwiGLU, modulated by the time embedding alone.
        patch_blocks = nn.ModuleList(
            SandwichBlock(
                build_attention(spec), SwiGLU(spec.width, spec.mlp_width), spec.width, spec.norm_eps
            )
            for _ in range(spec.patch_depth)
        )
        self.patch_blocks = cast("Sequence[SandwichBlock]", patch_blocks)
        pixel_blocks = nn.ModuleList(PixelBlock(spec) for _ in range(spec.pixel_depth))
        self.pixel_blocks = cast("Sequence[PixelBlock]", pixel_blocks)
        self.output_norm = nn.RMSNorm(spec.pixel_width, eps=spec.norm_eps)
        self.head = nn.Linear(spec.pixel_width, CHANNELS)
        initialise(self)

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        condition: Conditions,
        keep: Tensor | None = None,
        features_after: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Predict (B, 3, H, W), in the weights' dtype, for x (B, 3, H, W) at times t (B,) in [0,
        1].

        `condition` holds the text's batch fields; the null condition replaces it where `keep` (B,)
        bool is false. With `features_after` the tokens (B, N, D) of patches behind that patch
        block, from 1, are returned too. Raises ValueError for images and texts of sizes that the
        network does not take.
        """
        spec = self.spec
        spec.check_size(x.shape[2], x.shape[3])
        dtype = self.head.weight.dtype
        text = self.text(condition, keep)
        length = text.features.shape[1]
        rows = x.shape[2] // spec.patch_size
        columns = x.shape[3] // spec.patch_size
        patches = patchify(x.to(dtype), spec.patch_size)
        tokens = torch.cat((text.features, self.patch_embedding(patches)), dim=1)  # (B, T + N, D)
        if self.positions is not None:
            tokens = tokens + self.positions(length, rows, columns)
        key_mask = torch.cat(
            (text.mask, text.mask.new_ones(tokens.shape[0], rows * columns)), dim=1
        )
        joint, image = self.rotations(text.mask, rows, columns)
        time = self.time(t)
        features = None
        for number, block in enumerate(self.patch_blocks, start=1):
            tokens = block(tokens, time, joint, key_mask)
            if number == features_after:
                features = tokens[:, length:]
        s_cond = tokens[:, length:] + (time + text.pooled)[:, None]
        # (B, N, P * P, pixel width)
        pixels = self.pixel_embedding(patches.unflatten(-1, (-1, CHANNELS)))
        for pixel_block in self.pixel_blocks:
            pixels = pixel_block(pixels, s_cond, image)
        colours = self.head(self.output_norm(pixels)).flatten(2)  # (B, N, P * P * 3)
        output = unpatchify(colours, spec.patch_size, rows, CHANNELS)
        if features_after is None:
            return output
        assert features is not None, f"there is no patch block {features_after}"
        return output, features

    def text(self, condition: Conditions, keep: Tensor | None = None) -> TextCondition:
        """Read the text's batch fields, with the null condition where `keep` (B,) is false."""
        name = "text" if self.text_encoder is None else "caption"
        if condition[name].shape[1] > self.spec.text_length:
            raise ValueError(
                f"{name} has {condition[name].shape[1]} tokens, more than "
                f"model.text_length={self.spec.text_length}; cut it, or train with a higher "
                "model.text_length."
            )
        if self.text_encoder is not None:
            text = self.text_encoder(condition["caption"])
        else:
            dtype = self.head.weight.dtype
            features = condition["text"].to(dtype)
            pooled = condition["text_pooled"].to(dtype)
            text = TextCondition(features, condition["text_mask"], pooled)
        return text if keep is None else drop_captions(text, keep)

    def rotations(
        self, text_mask: Tensor, rows: int, columns: int
    ) -> tuple[Rotation | None, Rotation | None]:
        """Look up the rotations of text and patches in the patch path, and of patches in the pixel
        path; None where positions are learned.

        Text is padded where `text_mask` (B, T) is false; patches go row by row.
        """
        if self.rope is None:
            return None, None
        dtype = wide_dtype(self.head.weight)
        num, length = text_mask.shape
        device = text_mask.device
        # Text token n is at (n, 0, 0), a patch at (length of its sample's text, row, column).
        text = functional.pad(torch.arange(length, device=device)[:, None], (0, 2)).expand(
            num, -1, -1
        )
        place = torch.cartesian_prod(
            torch.arange(rows, device=device), torch.arange(columns, device=device)
        )
        place = functional.pad(place, (1, 0))  # (N, 3)
        after_text = functional.pad(text_mask.sum(dim=1)[:, None, None], (0, 2))  # (B, 1, 3)
        joint = torch.cat((text, place + after_text), dim=1)
        return self.rope(joint, dtype), self.rope(place[None], dtype)

    def components(self) -> ModuleGroups:
        return child_groups(self)

    def role_modules(self) -> ModulesByRole:
        return {"input": [self.patch_embedding, self.pixel_embedding], "head": [self.head]}

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        return [*self.patch_blocks, *self.pixel_blocks]

    def compiled_modules(self) -> ModuleGroups:
        return {"patch_block": self.patch_blocks, "pixel_block": self.pixel_blocks}


class BottleneckEmbedding(nn.Module):
    """Embedding of patches through a bottleneck: two Linears without biases, SiLU between them."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.squeeze = nn.Linear(spec.patch_size**2 * CHANNELS, spec.bottleneck_width, bias=False)
        self.expand = nn.Linear(spec.bottleneck_width, spec.width, bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Embed patches (B, N, P * P * 3): (B, N, D)."""
        return self.expand(functional.silu(self.squeeze(patches)))


class LearnedPositions(nn.Module):
    """A trained vector for each position in a text, and one for each row and column of the largest
    image.
    """

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.columns = spec.max_patches
        self.text = nn.Embedding(spec.text_length, spec.width)
        self.image = nn.Embedding(spec.max_patches**2, spec.width)

    def forward(self, text_length: int, rows: int, columns: int) -> Tensor:
        """Look up the vectors of T text tokens and of the patches behind them, in images of any
        size: (T + N, D).
        """
        device = self.text.weight.device
        row = torch.arange(rows, device=device)[:, None]
        cells = (row * self.columns + torch.arange(columns, device=device)).flatten()
        return torch.cat((self.text(torch.arange(text_length, device=device)), self.image(cells)))


def initialise(network: nn.Module) -> None:
    """Initialise Linears by Xavier uniform, biases to 0, embeddings normally; then once more the
    weights that this overwrites: biases of the modulations, gates of attention, the compactions'
    expansions."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD)
    for module in network.modules():
        if isinstance(module, SixWayAdaLN | GatedAttention | TokenCompaction):
            module.initialise()


class PixelwiseAdaLN(nn.Module):
    """A modulation of its own for every pixel, from the token of its patch, without a norm in
    between.
    """

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.pixels = spec.patch_size**2
        self.expand = nn.Linear(spec.width, self.pixels * spec.pixel_width, bias=False)
        self.six_way = SixWayAdaLN(spec.pixel_width, initial_scale=spec.adaln_init_gain)

    def forward(self, condition: Tensor) -> tuple[GatedModulation, GatedModulation]:
        """Compute the compaction's modulation and the SwiGLU's, each (B, N, M, W), from the
        condition (B, N, D).
        """
        return self.six_way(self.expand(condition).unflatten(-1, (self.pixels, -1)))


class TokenCompaction(nn.Module):
    """Attention of patches, each squeezed into one token: N tokens rather than N * M
    (arXiv:2511.20645).
    """

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        patch_width = spec.patch_size**2 * spec.pixel_width
        self.residual = spec.pixel_residual
        self.compress = nn.Linear(patch_width, spec.width, bias=False)
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.attention = build_attention(spec)
        self.post_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.expand = nn.Linear(spec.width, patch_width, bias=False)
        self.initialise()

    def initialise(self) -> None:
        """Initialise the expansion with a small gain."""
        nn.init.xavier_uniform_(self.expand.weight, gain=EXPAND_GAIN)

    def forward(self, x: Tensor, rope: Rotation | None) -> Tensor:
        """Transform (B, N, M, W) to the same shape."""
        tokens = self.norm(self.compress(x.flatten(2)))
        tokens = self.post_norm(self.attention(tokens, rope))
        detail = self.expand(tokens).view_as(x)
        return x + detail if self.residual == "double" else detail


class PixelBlock(nn.Module):
    """x + gate branch((1 + scale) norm(x) + shift), for a token compaction and a SwiGLU, which
    share the norm.
    """

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.adaln = PixelwiseAdaLN(spec)
        self.norm = nn.RMSNorm(spec.pixel_width, eps=spec.norm_eps)
        self.compaction = TokenCompaction(spec)
        self.mlp = SwiGLU(spec.pixel_width, round(spec.pixel_width * spec.mlp_ratio))

    def forward(self, x: Tensor, condition: Tensor, rope: Rotation | None = None) -> Tensor:
        """Transform x (B, N, M, W) under the condition (B, N, D)."""
        compaction, mlp = self.adaln(condition)
        h = (1 + compaction.scale) * self.norm(x) + compaction.shift
        x = x + compaction.gate * self.compaction(h, rope)
        h = (1 + mlp.scale) * self.norm(x) + mlp.shift
        return x + mlp.gate * self.mlp(h)
