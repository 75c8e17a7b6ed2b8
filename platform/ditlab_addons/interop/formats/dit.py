"""The diffusion transformer as released (Peebles and Xie 2023, arXiv:2212.09748; facebookresearch/DiT).

SiT's releases (willisma/SiT) have the same names and shapes, so no file tells which it is: it is read as DiT unless
`format: sit` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ditlab.weights.files import WeightFiles
from ditlab.weights.published import WeightsFormat
from ditlab.weights.rules import AnyRule, Dropped, Shapes, rename

NUM_HEADS = {384: 6, 768: 12, 1024: 16, 1152: 16}
"""Attention heads of the released sizes, S, B, L and XL, by width."""
POSITIONS = "pos_embed"
MARKS = ("x_embedder.proj.weight", "t_embedder.mlp.0.weight", "y_embedder.embedding_table.weight", POSITIONS)
CERTAIN = (
    "num_heads", "time_frequencies", "time_scale", "positions", "gelu", "norm_eps", "mlp_norm_eps", "variance_channels",
)  # fmt: skip


BODY: tuple[AnyRule, ...] = (
    Dropped(POSITIONS),
    rename("y_embedder.embedding_table.weight", "label.vectors.weight"),
    *(
        rename(f"{theirs}.{kind}", f"{ours}.{kind}")
        for theirs, ours in (
            ("x_embedder.proj", "patch_embedding.projection"),
            ("t_embedder.mlp.2", "time.out"),
            ("blocks.{n}.attn.qkv", "blocks.{n}.attention.qkv"),
            ("blocks.{n}.attn.proj", "blocks.{n}.attention.out"),
            ("blocks.{n}.mlp.fc1", "blocks.{n}.mlp.hidden"),
            ("blocks.{n}.mlp.fc2", "blocks.{n}.mlp.out"),
            ("blocks.{n}.adaLN_modulation.1", "blocks.{n}.adaln.modulation"),
            ("final_layer.adaLN_modulation.1", "final_norm.modulation"),
        )
        for kind in ("weight", "bias")
    ),
    rename("t_embedder.mlp.0.bias", "time.hidden.bias"),
)
"""Rules that DiT and SiT have in common."""
RULES = (
    *BODY,
    rename("t_embedder.mlp.0.weight", "time.hidden.weight"),
    *(rename(f"final_layer.linear.{kind}", f"head.{kind}") for kind in ("weight", "bias")),
)


def released_model(shapes: Shapes, files: WeightFiles, doubled: str) -> dict[str, Any]:
    """Return the section `model` of a release; `doubled` is `variance_channels` of a head with twice the channels.

    Raises ValueError where the number of heads is unknown.
    """
    width, channels, patch_size, _ = shapes["x_embedder.proj.weight"]
    num_heads = files.config.get("num_heads", NUM_HEADS.get(width))
    if num_heads is None:
        raise ValueError(
            f"tokens are {width} wide, as in no released size ({', '.join(map(str, NUM_HEADS))}), and no shape shows "
            'the number of heads; put a file config.json with {"num_heads": NUMBER} beside the weights.'
        )
    head_channels = shapes["final_layer.linear.weight"][0] // patch_size**2
    depth = sum(name.startswith("blocks.") and name.endswith(".attn.qkv.weight") for name in shapes)
    return {
        "family": "dit", "num_classes": shapes["y_embedder.embedding_table.weight"][0] - 1, "channels": channels,
        "image_size": round(shapes[POSITIONS][1] ** 0.5) * patch_size, "patch_size": patch_size, "width": width,
        "depth": depth, "num_heads": num_heads, "mlp_ratio": shapes["blocks.0.mlp.fc1.weight"][0] / width,
        "adaln": "zero", "condition_ratio": 1, "time_frequencies": "dit", "time_scale": 1.0,
        "positions": "column_first", "gelu": "tanh", "norm_eps": 1e-6, "mlp_norm_eps": None, "final_norm": "adaln",
        "variance_channels": "none" if head_channels == channels else doubled,
    }  # fmt: skip


def _notes(model: Mapping[str, Any]) -> list[str]:
    doubled = model["variance_channels"] == "predicted"
    variance = ", variance: learned_range" if doubled else ""
    return [
        f"read as DiT, whose objective is {{process: gaussian{variance}}}; weights of SiT have the same names and "
        "shapes, and are read with --format sit (model.init.format=sit).",
        f"no shape shows the number of heads: {model['num_heads']} are taken.",
    ]


FORMAT = WeightsFormat(
    "dit", "DiT as released (facebookresearch/DiT), family dit", MARKS, RULES,
    lambda shapes, files: released_model(shapes, files, "predicted"), certain=CERTAIN, notes=_notes,
)  # fmt: skip
