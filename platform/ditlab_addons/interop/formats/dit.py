"""DiT as released (Peebles and Xie 2023, arXiv:2212.09748; facebookresearch/DiT), and SiT (Ma et
al. 2024, arXiv:2401.08740; willisma/SiT).

Both have the same names and shapes, so no file tells which it is: it is read as DiT unless `format:
sit` says otherwise. In SiT time 0 is noise and 1 data, and the velocity is data - noise; ours runs
the other way, v(x, t) = -v_SiT(x, 1 - t). Both signs go into the weights: the head is negated, and
as

    cos(w (1 - t)) = cos(w) cos(w t) + sin(w) sin(w t),
    sin(w (1 - t)) = sin(w) cos(w t) - cos(w) sin(w t),

the sinusoid of 1 - t is a fixed matrix times that of t, which joins the first Linear of the
embedding of time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ditlab.weights.files import WeightFiles
from ditlab.weights.published import WeightsFormat
from ditlab.weights.rules import AnyRule, Computed, Rule, Shapes, rename
from ditlab_addons.interop.formats.layers import axes, rename_layers
from ditlab_models.layers.embeddings import frequencies, table_2d

NUM_HEADS = {384: 6, 768: 12, 1024: 16, 1152: 16}
"""Attention heads of the released sizes, S, B, L and XL, by width."""
POSITIONS = "pos_embed"
MARKS = (
    "x_embedder.proj.weight",
    "t_embedder.mlp.0.weight",
    "y_embedder.embedding_table.weight",
    POSITIONS,
)
CERTAIN = (
    "num_heads",
    "time_frequencies",
    "time_scale",
    "positions",
    "gelu",
    "norm_eps",
    "mlp_norm_eps",
    "variance_channels",
)


def released_positions(shape: tuple[int, ...]) -> Tensor:
    """Return the fixed table of positions (1, tokens, width) of a square image. Raises ValueError
    for another shape.
    """
    if len(shape) != 3:
        raise ValueError("a table of positions has the axes (1, tokens, width)")
    _, num, width = shape
    side = math.isqrt(num)
    if side**2 != num or width % 4:
        raise ValueError("the tokens are no square, or their width is no multiple of 4")
    return table_2d(side, side, width, order="column_first")[None]


BODY: tuple[AnyRule, ...] = (
    Computed(POSITIONS, released_positions),
    rename("y_embedder.embedding_table.weight", "label.vectors.weight"),
    *rename_layers(
        ("x_embedder.proj", "patch_embedding.projection"),
        ("t_embedder.mlp.2", "time.out"),
        ("blocks.{n}.attn.qkv", "blocks.{n}.attention.qkv"),
        ("blocks.{n}.attn.proj", "blocks.{n}.attention.out"),
        ("blocks.{n}.mlp.fc1", "blocks.{n}.mlp.hidden"),
        ("blocks.{n}.mlp.fc2", "blocks.{n}.mlp.out"),
        ("blocks.{n}.adaLN_modulation.1", "blocks.{n}.adaln.modulation"),
        ("final_layer.adaLN_modulation.1", "final_norm.modulation"),
    ),
    rename("t_embedder.mlp.0.bias", "time.hidden.bias"),
)
"""Rules that DiT and SiT have in common."""
RULES = (
    *BODY,
    rename("t_embedder.mlp.0.weight", "time.hidden.weight"),
    *rename_layers(("final_layer.linear", "head")),
)


def released_model(shapes: Shapes, files: WeightFiles, doubled: str) -> dict[str, Any]:
    """Return the section `model` of a release; `doubled` is `variance_channels` of a head with
    twice the channels.

    Raises ValueError where the number of heads is unknown.
    """
    width, channels, patch_size, _ = axes(shapes, "x_embedder.proj.weight", 4)
    num_tokens = axes(shapes, POSITIONS, 3)[1]
    num_heads = files.config.get("num_heads", NUM_HEADS.get(width))
    if num_heads is None:
        raise ValueError(
            f"tokens are {width} wide, as in no released size ({', '.join(map(str, NUM_HEADS))}), "
            'and no shape shows the number of heads; put a file config.json with {"num_heads": '
            "NUMBER} beside the weights."
        )
    head_channels = shapes["final_layer.linear.weight"][0] // patch_size**2
    depth = sum(name.startswith("blocks.") and name.endswith(".attn.qkv.weight") for name in shapes)
    return {
        "family": "dit",
        "num_classes": shapes["y_embedder.embedding_table.weight"][0] - 1,
        "channels": channels,
        "image_size": round(num_tokens**0.5) * patch_size,
        "patch_size": patch_size,
        "width": width,
        "depth": depth,
        "num_heads": num_heads,
        "mlp_ratio": shapes["blocks.0.mlp.fc1.weight"][0] / width,
        "adaln": "zero",
        "condition_ratio": 1,
        "time_frequencies": "dit",
        "time_scale": 1.0,
        "positions": "column_first",
        "gelu": "tanh",
        "norm_eps": 1e-6,
        "mlp_norm_eps": None,
        "final_norm": "adaln",
        "variance_channels": "none" if head_channels == channels else doubled,
    }


def _notes(model: Mapping[str, Any], files: WeightFiles) -> list[str]:
    variance = ""
    if model["variance_channels"] == "predicted":
        variance = ", variance: learned_range"
    return [
        (
            f"read as DiT, whose objective is {{process: gaussian{variance}}}; weights of SiT "
            "have the same names and shapes, and are read with --format sit "
            "(model.init.format=sit)."
        ),
        f"no shape shows the number of heads: {model['num_heads']} are taken.",
    ]


FORMAT = WeightsFormat(
    "dit",
    "DiT as released (facebookresearch/DiT), family dit",
    MARKS,
    RULES,
    lambda shapes, files: released_model(shapes, files, "predicted"),
    certain=CERTAIN,
    notes=_notes,
)


def _reverse_time(values: Sequence[Tensor]) -> Tensor:
    """Let a Linear (E, 256) on the sinusoid of t give what it gave on that of 1 - t."""
    omega = frequencies(values[0].shape[1])
    cos, sin = values[0].double().chunk(2, dim=1)  # columns of cosines, then of sines
    c = omega.cos()
    s = omega.sin()
    return torch.cat((cos * c + sin * s, cos * s - sin * c), dim=1)


SIT_RULES = (
    *BODY,
    Rule(("t_embedder.mlp.0.weight",), "time.hidden.weight", _reverse_time),
    *(
        Rule((f"final_layer.linear.{kind}",), f"head.{kind}", lambda values: -values[0])
        for kind in ("weight", "bias")
    ),
)


def _sit_notes(model: Mapping[str, Any], files: WeightFiles) -> list[str]:
    return [
        (
            "time and velocity are turned round to ours (0 data, 1 noise) in the weights, "
            "exactly; the objective is {process: flow}."
        ),
        f"no shape shows the number of heads: {model['num_heads']} are taken.",
    ]


SIT = WeightsFormat(
    "sit",
    "SiT as released (willisma/SiT), family dit; never found by itself, as its names are DiT's",
    MARKS,
    SIT_RULES,
    lambda shapes, files: released_model(shapes, files, "unused"),
    lambda tensors, files: False,
    CERTAIN,
    _sit_notes,
)
