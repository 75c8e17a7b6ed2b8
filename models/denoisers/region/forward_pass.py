"""Diagram of the region network's forward pass, with the shapes of a spec."""

from __future__ import annotations

from denoisers.figure_kinds.pass_diagram import pass_figure
from denoisers.figures import Figure
from denoisers.region.spec import RegionSpec


def forward_pass_figure(spec: RegionSpec) -> Figure:
    """Draw the boxes from a window's features to the predicted ones, and the conditioning by the timestep."""
    regions, features, width = spec.num_regions, spec.num_features, spec.width
    token = "replaced by the mask token" if spec.corruption == "mask" else "noised, + mask token"
    positions = [] if spec.positions == "none" else [("+ sinusoids of position", f"{regions} x {width}")]
    steps = [
        ("Features X of a window", f"{regions} regions x {features}"),
        ("Embedding", f"Linear {features} → {width}"),
        ("Masked regions", token),
        *positions,
        ("+ class token", f"{regions + 1} x {width}"),
        (f"{spec.depth} blocks: attention", f"h + gate · attention(adaLN(h, c)), {spec.num_heads} heads"),
        (f"{spec.depth} blocks: MLP", f"h + gate · MLP(adaLN(h, c)), hidden {spec.mlp_width}"),
        ("LayerNorm, without the class token", f"{regions} x {width}"),
        ("Head: predicted features", f"Linear {width} → {features}, of masked regions"),
    ]
    conditions = [
        ("Timestep t", "0 .. T - 1"),
        ("Sinusoid", f"{spec.time_width} numbers, cosines first"),
        ("MLP: condition c", f"{spec.time_width} → {width}"),
        ("adaLN-Zero", "shift, scale, gate of each branch"),
    ]
    attention = 4 + len(positions)
    alt = (
        f"Diagram of the region network: features of {regions} regions, embedding, mask token, class token, "
        f"{spec.depth} blocks modulated by the timestep, predicted features."
    )
    return pass_figure(steps, conditions, (attention, attention + 1), "The forward pass of the region network", alt)
