"""Score-entropy networks of Lou et al. 2024 (arXiv:2310.16834;
louaaron/Score-Entropy-Discrete-Diffusion, MIT).

The uniform graph's network is the dlm with `norm: layer`, `mlp: gelu` and `final_norm: false`. The
absorbing graph's, with one more token, is none: its outputs are scaled by the noise level, and its
process masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ditlab.weights.files import WeightFiles
from ditlab.weights.published import WeightsFormat
from ditlab.weights.rules import AnyRule, Computed, Shapes, rename
from ditlab_addons.interop.formats.layers import axes, rename_layers
from ditlab_models.layers.embeddings import frequencies

GPT2 = 50257
"""Tokens of GPT-2's vocabulary; with a mask token, one more."""
HEAD_WIDTH = 64
FREQUENCIES = "rotary_emb.inv_freq"
"""Buffer of half a head's width."""


def _frequencies(shape: tuple[int, ...]) -> Tensor:
    """Return the frequencies of rotations (head / 2,). Raises ValueError for another shape."""
    if len(shape) != 1:
        raise ValueError("frequencies have one axis")
    return frequencies(2 * shape[0])


RULES: tuple[AnyRule, ...] = (
    rename("vocab_embed.embedding", "embedding.weight"),
    Computed(FREQUENCIES, _frequencies),
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


def _section(files: WeightFiles, name: str) -> Mapping[str, Any]:
    """Return a section of config.json; {} where there is none."""
    section = files.config.get(name)
    return section if isinstance(section, Mapping) else {}


def _is_absorbing(vocabulary: int, files: WeightFiles) -> bool:
    graph = _section(files, "graph").get("type", "")
    return graph == "absorb" or (not graph and vocabulary == GPT2 + 1)


def _model(shapes: Shapes, files: WeightFiles) -> Mapping[str, Any]:
    vocabulary, width = axes(shapes, "vocab_embed.embedding", 2)
    if _is_absorbing(vocabulary, files):
        raise ValueError(
            f"its {vocabulary:,} tokens have a mask among them, the absorbing graph's, and the "
            "dlm's process is the uniform graph's, whose scores are others; use weights that "
            "were trained with graph=uniform."
        )
    condition, time_width = axes(shapes, "sigma_map.mlp.0.weight", 2)
    sizes = _section(files, "model")
    if FREQUENCIES in shapes:
        head = 2 * axes(shapes, FREQUENCIES, 1)[0]
        num_heads = width // head
    else:
        num_heads = sizes.get("n_heads", width // HEAD_WIDTH)
    if not isinstance(num_heads, int) or num_heads < 1 or width % num_heads:
        raise ValueError(
            f"model.n_heads={num_heads} of its config.json divides no tokens that are {width} "
            "wide; bring back the file that was published."
        )
    hidden = axes(shapes, "blocks.0.mlp.0.weight", 2)[0]
    depth = sum(name.startswith("blocks.") and name.endswith(".attn_qkv.weight") for name in shapes)
    return {
        "family": "dlm",
        "vocabulary": vocabulary,
        "length": sizes.get("length", 1024),
        "depth": depth,
        "num_heads": num_heads,
        "width": width,
        "mlp_ratio": hidden / width,
        "condition_width": condition,
        "time_width": time_width,
        "norm": "layer",
        "mlp": "gelu",
        "final_norm": False,
    }


def _notes(model: Mapping[str, Any], files: WeightFiles) -> list[str]:
    notes = []
    if not _section(files, "graph").get("type"):
        notes.append(
            f"nothing beside the file says its graph: the uniform one is taken for "
            f"{model['vocabulary']:,} tokens. If the last token is a mask, the weights are of "
            'the absorbing graph and none of ours; a config.json with {"graph": {"type": '
            '"absorb"}} or "uniform" beside the file says which.'
        )
    if not _section(files, "model").get("length"):
        notes.append(f"nothing says its length: {model['length']} tokens are taken.")
    return notes


FORMAT = WeightsFormat(
    "sedd",
    "score-entropy networks of the uniform graph (louaaron/Score-Entropy-Discrete-Diffusion), "
    "family dlm",
    ("vocab_embed.embedding", "sigma_map.mlp.0.weight", "output_layer.norm_final.weight"),
    RULES,
    _model,
    certain=("num_heads", "norm", "mlp", "final_norm"),
    notes=_notes,
)
