"""diffusers' `DiTTransformer2DModel`, as its `save_pretrained` writes it.

It is not the released DiT: frequencies of time are 10000^(-j / 127), the norm before the MLP has an
eps of its own, and each block has an embedding of time and class; that of block 0 serves the head
as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ditlab.weights.files import WeightFiles
from ditlab.weights.published import WeightsFormat
from ditlab.weights.rules import AnyRule, Shapes, concatenate, rename
from ditlab_addons.interop.formats.dit import CERTAIN
from ditlab_addons.interop.formats.layers import axes, rename_layers

BLOCK = "transformer_blocks.{n}"
OURS = "blocks.{n}"
FIRST = "transformer_blocks.0.norm1.emb"
NEXT = "transformer_blocks.{n+1}.norm1.emb"
FIXED = {
    "norm_type": "ada_norm_zero",
    "activation_fn": "gelu-approximate",
    "upcast_attention": False,
}
"""Values of its configuration that ours has."""
SAME: Mapping[str, Any] = {
    "adaln": "zero",
    "condition_ratio": 1,
    "time_frequencies": "diffusers",
    "time_scale": 1.0,
    "embeddings": "per_block",
    "positions": "column_first",
    "gelu": "tanh",
    "norm_eps": 1e-6,
    "final_norm": "adaln",
}
"""Fields of `model` that all networks of it have in common."""

RULES: tuple[AnyRule, ...] = (
    rename(f"{FIRST}.class_embedder.embedding_table.weight", "label.vectors.weight"),
    rename(
        f"{NEXT}.class_embedder.embedding_table.weight", "block_embeddings.{n}.label.vectors.weight"
    ),
    *(
        concatenate(
            [f"{BLOCK}.attn1.to_{part}.{kind}" for part in "qkv"], f"{OURS}.attention.qkv.{kind}"
        )
        for kind in ("weight", "bias")
    ),
    *rename_layers(
        (f"{FIRST}.timestep_embedder.linear_1", "time.hidden"),
        (f"{FIRST}.timestep_embedder.linear_2", "time.out"),
        (f"{NEXT}.timestep_embedder.linear_1", "block_embeddings.{n}.time.hidden"),
        (f"{NEXT}.timestep_embedder.linear_2", "block_embeddings.{n}.time.out"),
        ("pos_embed.proj", "patch_embedding.projection"),
        (f"{BLOCK}.norm1.linear", f"{OURS}.adaln.modulation"),
        (f"{BLOCK}.attn1.to_out.0", f"{OURS}.attention.out"),
        (f"{BLOCK}.ff.net.0.proj", f"{OURS}.mlp.hidden"),
        (f"{BLOCK}.ff.net.2", f"{OURS}.mlp.out"),
        ("proj_out_1", "final_norm.modulation"),
        ("proj_out_2", "head"),
    ),
)


def _model(shapes: Shapes, files: WeightFiles) -> Mapping[str, Any]:
    config = files.config
    needed = ("num_attention_heads", "sample_size")
    missing = [name for name in needed if not isinstance(config.get(name), int)]
    if missing:
        raise ValueError(
            f"config.json beside it does not give {' and '.join(missing)}, which no shape "
            "shows; bring back the file that save_pretrained wrote."
        )
    for name, value in FIXED.items():
        if config.get(name, value) != value:
            raise ValueError(
                f"its config.json has {name}={config[name]}, and the dit family has {value} alone."
            )
    width, channels, patch_size, _ = axes(shapes, "pos_embed.proj.weight", 4)
    head_channels = shapes["proj_out_2.weight"][0] // patch_size**2
    if head_channels not in (channels, 2 * channels):
        raise ValueError(
            f"its head gives {head_channels} channels for images of {channels}; it must be as "
            "many or twice."
        )
    return {
        **SAME,
        "family": "dit",
        "channels": channels,
        "image_size": config["sample_size"],
        "patch_size": patch_size,
        "num_classes": shapes[f"{FIRST}.class_embedder.embedding_table.weight"][0] - 1,
        "width": width,
        "depth": sum(name.endswith(".attn1.to_q.weight") for name in shapes),
        "num_heads": config["num_attention_heads"],
        "mlp_norm_eps": config.get("norm_eps", 1e-5),
        "mlp_ratio": shapes["transformer_blocks.0.ff.net.0.proj.weight"][0] / width,
        "variance_channels": "none" if head_channels == channels else "predicted",
    }


def _notes(model: Mapping[str, Any], files: WeightFiles) -> list[str]:
    variance = ""
    if model["variance_channels"] == "predicted":
        variance = ", variance: learned_range"
    return [f"its objective is {{process: gaussian{variance}}}."]


FORMAT = WeightsFormat(
    "diffusers_dit",
    "diffusers' DiTTransformer2DModel (its folder `transformer`), family dit",
    (
        "pos_embed.proj.weight",
        "transformer_blocks.0.norm1.linear.weight",
        "proj_out_1.weight",
        "proj_out_2.weight",
    ),
    RULES,
    _model,
    certain=CERTAIN,
    notes=_notes,
)
