"""GET's region pretraining (Fu et al. 2025, doi:10.1038/s41586-024-08391-z;
GET-Foundation/get_model, MIT).

The published encoder is a plain pre-norm transformer without positions: LayerNorm with weight and
bias (eps 1e-6), no bias of keys, exact GELU. Ours modulates norms without weights, (1 + scale)
norm(x) + shift, and gates each branch; with the modulation's weight 0 and its bias (b, w - 1, 1) it
is the published block at every timestep, so a run that begins from GET learns the timestep on top
of it. The embedding of time has no published counterpart and stays as the seed gives it: nothing
depends on it until the modulation's weight has left 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ditlab.weights.files import WeightFiles
from ditlab.weights.published import WeightsFormat
from ditlab.weights.rules import (
    AnyRule,
    Kept,
    Rule,
    Shapes,
    ZeroTensor,
    concatenate,
    rename,
    squeeze,
)
from ditlab_addons.interop.formats.layers import axes, rename_layers

HEAD_WIDTH = 64
"""Width of an attention head, which no shape shows: that of all published sizes."""
BLOCK = "encoder.blocks.{n}"
OURS = "blocks.{n}"
NORMS = tuple(
    f"{BLOCK}.{norm}.{kind}" for norm in ("norm1", "norm2") for kind in ("weight", "bias")
)


def _read_norms(values: Sequence[Tensor]) -> Tensor:
    """Make the modulation's bias of the norms' weights and biases: shift, scale and gate of each
    branch.
    """
    first, shift, second, mlp_shift = (each.double() for each in values)
    one = torch.ones_like(first)
    return torch.cat((shift, first - 1, one, mlp_shift, second - 1, one))


RULES: tuple[AnyRule, ...] = (
    squeeze("mask_token", "tokens.mask", 2),
    squeeze("cls_token", "tokens.cls", 2),
    Kept("time.{name}"),
    ZeroTensor(f"{OURS}.adaln.modulation.weight"),
    Rule(NORMS, f"{OURS}.adaln.modulation.bias", _read_norms),
    rename(f"{BLOCK}.attn.qkv.weight", f"{OURS}.attention.qkv.weight"),
    concatenate(
        (f"{BLOCK}.attn.q_bias", None, f"{BLOCK}.attn.v_bias"), f"{OURS}.attention.qkv.bias"
    ),
    *rename_layers(
        ("region_embed.embed", "embedding"),
        (f"{BLOCK}.attn.proj", f"{OURS}.attention.out"),
        (f"{BLOCK}.mlp.fc1", f"{OURS}.mlp.hidden"),
        (f"{BLOCK}.mlp.fc2", f"{OURS}.mlp.out"),
        ("encoder.norm", "final_norm"),
        ("head_mask", "head"),
    ),
)


def _model(shapes: Shapes, files: WeightFiles) -> Mapping[str, Any]:
    width, num_features = axes(shapes, "region_embed.embed.weight", 2)
    if width % HEAD_WIDTH:
        raise ValueError(
            f"tokens are {width} wide, and GET's heads are {HEAD_WIDTH}, so the number of "
            "heads is unknown; give the format and the section model yourself."
        )
    hidden = shapes["encoder.blocks.0.mlp.fc1.weight"][0]
    depth = sum(
        name.startswith("encoder.blocks.") and name.endswith(".attn.qkv.weight") for name in shapes
    )
    return {
        "family": "region",
        "num_features": num_features,
        "width": width,
        "depth": depth,
        "num_heads": width // HEAD_WIDTH,
        "mlp_ratio": hidden / width,
        "corruption": "mask",
        "positions": "none",
    }


def _notes(model: Mapping[str, Any], files: WeightFiles) -> list[str]:
    return [
        (
            f"no shape shows the number of heads: {model['num_heads']} of {HEAD_WIDTH} are "
            "assumed, as published."
        )
    ]


FORMAT = WeightsFormat(
    "get",
    "region pretraining of GET (GET-Foundation/get_model), family region",
    ("region_embed.embed.weight", "cls_token", "encoder.blocks.0.attn.qkv.weight"),
    RULES,
    _model,
    notes=_notes,
)
