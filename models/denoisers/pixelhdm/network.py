"""PixelHDM: a transformer over patches and text, and one over pixels that it conditions (see README.md).

PixelDiT's two paths (arXiv:2511.20645). B batch, H and W height and width, P patch size, N patches, T text tokens, D
width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from denoisers.layers.gated_attention import GatedAttention
from denoisers.layers.patches import patchify, unpatchify
from denoisers.layers.rope import Rotation
from denoisers.layers.sandwich_block import SixWayAdaLN
from denoisers.layers.time_embedding import TimeEmbedding
from denoisers.pixelhdm.model_spec import CHANNELS, PixelHDMSpec
from denoisers.pixelhdm.patch_path import (
    BottleneckEmbedding,
    LearnedPositions,
    axes_rope,
    image_positions,
    patch_block,
    text_positions,
)
from denoisers.pixelhdm.pixel_path import PixelBlock, TokenCompaction
from denoisers.pixelhdm.text_encoder import TextCondition, TextEncoder, null_where_dropped

TIME_SCALE = 1000.0
EMBEDDING_STD = 0.02


class Prediction(NamedTuple):
    """What the network says of a noisy image, and what it made of it half way."""

    output: Tensor
    """(B, 3, H, W)."""
    features: Tensor
    """(B, N, D): the patches' tokens behind one of the patch blocks."""


class Rotations(NamedTuple):
    """What turns the tokens of each path; None where positions are learned."""

    joint: Rotation | None
    """Of text and patches, by their places in both."""
    image: Rotation | None
    """Of patches alone."""


class PixelHDM(nn.Module):
    """Predicts the velocity, or the image, at (x, t) of what a caption says."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.spec = spec
        self.text_encoder = TextEncoder(spec) if spec.text_encoder == "learned" else None
        self.positions = LearnedPositions(spec) if spec.positions == "learned" else None
        self.rope = axes_rope(spec) if spec.positions == "mrope" else None
        self.patch_embedding = BottleneckEmbedding(spec)
        self.pixel_embedding = nn.Linear(CHANNELS, spec.pixel_width)
        self.time = TimeEmbedding(spec.time_width, spec.width, TIME_SCALE, denominator="half")
        self.patch_blocks = nn.ModuleList(patch_block(spec) for _ in range(spec.patch_depth))
        self.pixel_blocks = nn.ModuleList(PixelBlock(spec) for _ in range(spec.pixel_depth))
        self.output_norm = nn.RMSNorm(spec.pixel_width, eps=spec.norm_eps)
        self.head = nn.Linear(spec.pixel_width, CHANNELS)
        initialise(self)

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        condition: Mapping[str, Tensor],
        keep: Tensor | None = None,
        features_after: int | None = None,
    ) -> Tensor | Prediction:
        """x (B, 3, H, W) at times t (B,) in [0, 1] -> the prediction (B, 3, H, W), in the weights' dtype.

        `condition` holds the text's batch fields by name; where `keep` (B,) bool is false, the null condition stands in
        for it. With `features_after` the tokens of patches behind that patch block, counted from 1, are returned too.
        Raises ValueError for images and texts of sizes that the network does not take.
        """
        spec = self.spec
        spec.check_size(x.shape[2], x.shape[3])
        dtype = self.head.weight.dtype
        text = self.text(condition, keep)
        length = text.features.shape[1]
        rows, columns = x.shape[2] // spec.patch_size, x.shape[3] // spec.patch_size
        patches = patchify(x.to(dtype), spec.patch_size)
        tokens = torch.cat((text.features, self.patch_embedding(patches)), dim=1)  # (B, T + N, D)
        if self.positions is not None:
            tokens = tokens + self.positions(length, rows, columns)
        present = torch.cat((text.present, text.present.new_ones(tokens.shape[0], rows * columns)), dim=1)
        by = self.rotations(text.present, rows, columns)
        time = self.time(t)
        features = None
        for number, block in enumerate(self.patch_blocks, start=1):
            tokens = block(tokens, time, by.joint, present)
            if number == features_after:
                features = tokens[:, length:]
        told = tokens[:, length:] + (time + text.pooled)[:, None]
        pixels = self.pixel_embedding(patches.unflatten(-1, (-1, CHANNELS)))  # (B, N, P * P, pixel width)
        for block in self.pixel_blocks:
            pixels = block(pixels, told, by.image)
        colours = self.head(self.output_norm(pixels)).flatten(2)  # (B, N, P * P * 3)
        output = unpatchify(colours, spec.patch_size, rows, CHANNELS)
        if features_after is None:
            return output
        assert features is not None, f"there is no patch block {features_after}"
        return Prediction(output, features)

    def text(self, condition: Mapping[str, Tensor], keep: Tensor | None = None) -> TextCondition:
        """What the batch fields of the text say, with the null condition where `keep` (B,) is false."""
        name = "text" if self.text_encoder is None else "caption"
        if condition[name].shape[1] > self.spec.text_length:
            raise ValueError(
                f"{name} has {condition[name].shape[1]} tokens, more than model.text_length={self.spec.text_length}; "
                "cut it, or train with a higher model.text_length."
            )
        if self.text_encoder is not None:
            text = self.text_encoder(condition["caption"])
        else:
            dtype = self.head.weight.dtype
            features, pooled = condition["text"].to(dtype), condition["text_pooled"].to(dtype)
            text = TextCondition(features, condition["text_mask"], pooled)
        return text if keep is None else null_where_dropped(text, keep)

    def rotations(self, present: Tensor, rows: int, columns: int) -> Rotations:
        """Of the tokens behind texts whose tokens are `present` (B, T): text first, then patches row by row."""
        if self.rope is None:
            return Rotations(None, None)
        dtype = torch.promote_types(self.head.weight.dtype, torch.float32)
        num, length = present.shape
        lengths = present.sum(dim=1)
        text = text_positions(length, num, present.device)
        joint = torch.cat((text, image_positions(rows, columns, lengths)), dim=1)
        alone = image_positions(rows, columns, lengths.new_zeros(1))
        return Rotations(self.rope(joint, dtype), self.rope(alone, dtype))

    def components(self) -> dict[str, Sequence[nn.Module]]:
        optional = {"text_encoder": self.text_encoder, "positions": self.positions}
        return {
            **{name: [module] for name, module in optional.items() if module is not None},
            "patch_embedding": [self.patch_embedding],
            "pixel_embedding": [self.pixel_embedding],
            "time": [self.time],
            "patch_blocks": [self.patch_blocks],
            "pixel_blocks": [self.pixel_blocks],
            "output_norm": [self.output_norm],
            "head": [self.head],
        }

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        return [*self.patch_blocks, *self.pixel_blocks]


def initialise(network: nn.Module) -> None:
    """Xavier uniform for Linears, without bias; normal for embeddings; then again what that has overwritten: biases of
    the modulations, gates of attention, the way back of the compactions."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD)
    for module in network.modules():
        if isinstance(module, SixWayAdaLN | GatedAttention | TokenCompaction):
            module.start()
