"""The plain network of a model section. Raises ValueError for a section that has none."""

from __future__ import annotations

from typing import Any

from torch import nn

from benchmarks.plain.dit import HandDiT
from benchmarks.plain.unet import HandUNet


def plain_network(model: Any) -> nn.Module:
    """Build the plain network of a spec's `model`, of its sizes. Raises ValueError where there is none."""
    if model.family == "dit" and model.adaln == "scale_shift" and model.num_classes is None and model.mlp_ratio == 4:
        return HandDiT(
            image_size=model.image_size,
            channels=model.channels,
            patch_size=model.patch_size,
            width=model.width,
            depth=model.depth,
            num_heads=model.num_heads,
        )
    if model.family == "unet" and model.num_classes is None:
        return HandUNet(channels=model.channels, width=model.width, time_width=model.time_width)
    raise ValueError(f"model.family={model.family}: there is no plain network of these settings")
