"""Score-entropy networks of Lou et al. 2024 (arXiv:2310.16834;
louaaron/Score-Entropy-Discrete-Diffusion, MIT).

The uniform graph's network is the dlm with `norm: layer`, `mlp: gelu` and `final_norm: false`. The
absorbing graph's, with one more token, is none: its outputs are scaled by the noise level, and its
process masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ditlab.weights.files import WeightFiles
from ditlab.weights.published import WeightsFormat
from ditlab.weights.rules import AnyRule, Dropped, Shapes, rename
from ditlab_addons.interop.formats.layers import rename_layers

GPT2 = 50257
"""Tokens of GPT-2's vocabulary; with a mask token, one more."""
HEAD_WIDTH = 64
FREQUENCIES = "rotary_emb.inv_freq"
"""Buffer of half a head's width."""


RULES: tuple[AnyRule, ...] = (
    rename("vocab_embed.embedding", "embedding.weight"),
    Dropped(FREQUENCIES),
    rename("blocks.{n}.norm1.weight", "blocks.{n}.attention_norm.weight"),
    rename("blocks.{n}.attn_qkv.weight", "blocks.{n}.attention.qkv.weight"),
    rename("blocks.{n}.attn_out.weight", "blocks.{n}.attention.out.weight"),
    rename("blocks.{n}.norm2.weight", "blocks.{n}.mlp_norm.weight"),
    rename("output_layer.norm_final.weight", "output.norm.weight"),
    *rename_layers(
        ("sigma_map.mlp.0", "sigma_map.hidden"),
        ("sigma_map.mlp.2", "sigma_map.out"),
        ("blocks.{n}.mlp.0", "blocks.{n}.mlp.hidden"),
        ("blocks.{n}.mlp.2", "blocks.{n}.mlp.out"),
        ("blocks.{n}.adaLN_modulation", "blocks.{n}.modulation"),
        ("output_layer.linear", "output.log_scores"),
        ("output_layer.adaLN_modulation", "output.modulation"),
    ),
)


def _model(shapes: Shapes, files: WeightFiles) -> Mapping[str, Any]:
    vocabulary, width = shapes["vocab_embed.embedding"]
    config = {name: each for name, each in files.config.items() if isinstance(each, Mapping)}
    sizes = config.get("model", {})
    graph = config.get("graph", {}).get("type", "")
    if graph == "absorb" or (not graph and vocabulary == GPT2 + 1):
        raise ValueError(
            f"its {vocabulary:,} tokens have a mask among them, the absorbing graph's, and the "
            "dlm's process is the uniform graph's, whose scores are others; use weights that "
            "were trained with graph=uniform."
        )
    condition, time_width = shapes["sigma_map.mlp.0.weight"]
    if FREQUENCIES in shapes:
        head = 2 * shapes[FREQUENCIES][0]
    else:
        head = width // sizes.get("n_heads", width // HEAD_WIDTH)
    hidden = shapes["blocks.0.mlp.0.weight"][0]
    depth = sum(name.startswith("blocks.") and name.endswith(".attn_qkv.weight") for name in shapes)
    return {
        "family": "dlm",
        "vocabulary": vocabulary,
        "length": sizes.get("length", 1024),
        "depth": depth,
        "num_heads": width // head,
        "width": width,
        "mlp_ratio": hidden / width,
        "condition_width": condition,
        "time_width": time_width,
        "norm": "layer",
        "mlp": "gelu",
        "final_norm": False,
    }


FORMAT = WeightsFormat(
    "sedd",
    "score-entropy networks of the uniform graph (louaaron/Score-Entropy-Discrete-Diffusion), "
    "family dlm",
    ("vocab_embed.embedding", "sigma_map.mlp.0.weight", "output_layer.norm_final.weight"),
    RULES,
    _model,
    certain=("num_heads", "norm", "mlp", "final_norm"),
)
