"""Diagram of DiT's forward pass, with the shapes of a spec."""

from __future__ import annotations

from denoisers.dit.spec import DiTSpec
from denoisers.figure_kinds.pass_diagram import pass_figure, shape_text
from denoisers.figures import Figure


def forward_pass_figure(spec: DiTSpec) -> Figure:
    """Draw the boxes from image to velocity, and the conditioning by time and class beside them."""
    num, width, patch = spec.num_rows**2, spec.width, spec.patch_size**2 * spec.channels
    image = shape_text((spec.channels, spec.image_size, spec.image_size))
    zero = spec.adaln == "zero"
    gate = "gate · " if zero else ""
    steps = [
        ("Noised image x_t", image),
        ("Patchify", f"{num} patches of {patch} numbers"),
        ("Patch embedding", f"Linear {patch} → {width}"),
        ("+ position table", f"{num} x {width}, fixed sinusoids"),
        (f"{spec.depth} blocks: attention", f"z + {gate}attention(adaLN(z, c)), {spec.num_heads} heads"),
        (f"{spec.depth} blocks: MLP", f"z + {gate}MLP(adaLN(z, c)), hidden {spec.mlp_width}"),
        ("LayerNorm, head", f"Linear {width} → {patch}, starts at 0"),
        ("Unpatchify: velocity v", image),
    ]
    label = [] if spec.num_classes is None else [("+ class embedding", f"{spec.num_classes} classes and none")]
    conditions = [
        ("Time t", "0: data, 1: noise"),
        ("Sinusoid", f"{width} numbers"),
        (f"MLP{' + class' if label else ''}: condition c", f"{width} → {spec.condition_width}"),
        ("adaLN", "scale, shift, gate of each branch" if zero else "scale, shift of each branch"),
    ]
    alt = (
        f"Diagram of the diffusion transformer: image, {num} patches, embedding and positions, {spec.depth} blocks of "
        "attention and MLP modulated by time, head, velocity."
    )
    return pass_figure(steps, conditions, (4, 5), "The forward pass of DiT", alt)
