"""Diagram of the language model's forward pass, with the shapes of a spec."""

from __future__ import annotations

from denoisers.dlm.spec import DLMSpec
from denoisers.figure_kinds.pass_diagram import pass_figure
from denoisers.figures import Figure


def forward_pass_figure(spec: DLMSpec) -> Figure:
    """Draw the boxes from noisy tokens to log scores, and the conditioning by the noise level beside them."""
    length, width, vocabulary = spec.length, spec.width, spec.vocabulary
    mask = "" if spec.block_size is None else f", causal in blocks of {spec.block_size}"
    steps = [
        ("Noisy tokens x", f"{length} of {vocabulary:,}"),
        ("Embedding", f"{length} x {width}"),
        ("In every block: rotary positions", "turn queries and keys, never values"),
        (f"{spec.depth} blocks: attention", f"x + gate · attention(adaLN(x, c)), {spec.num_heads} heads{mask}"),
        (f"{spec.depth} blocks: SwiGLU", f"x + gate · SwiGLU(adaLN(x, c)), hidden {spec.mlp_width}"),
        ("RMSNorm", f"{length} x {width}"),
        ("Output layer", f"adaLN, Linear {width} → {vocabulary:,}, starts at 0"),
        ("Log scores", f"{length} x {vocabulary:,}, 0 at the token itself"),
    ]
    conditions = [
        ("Noise level sigma", "by sample, block or token"),
        ("Sinusoid", f"{spec.time_width} numbers, cosines first"),
        ("MLP, SiLU: condition c", f"{spec.time_width} → {spec.condition_width}"),
        ("adaLN-Zero", "shift, scale, gate of each branch"),
    ]
    alt = (
        f"Diagram of the language model: noisy tokens, embedding, {spec.depth} blocks of rotary attention and SwiGLU "
        "modulated by the noise level, log scores of every token."
    )
    return pass_figure(steps, conditions, (3, 4, 6), "The forward pass of the language model", alt)
