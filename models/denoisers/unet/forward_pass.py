"""Diagram of the U-Net's forward pass, with the shapes of a spec."""

from __future__ import annotations

from denoisers.figure_kinds.pass_diagram import shape_text
from denoisers.figures import Arrow, Box, Diagram, Figure
from denoisers.unet.spec import UNetSpec


def forward_pass_figure(spec: UNetSpec) -> Figure:
    """Draw the way down, the middle, the way up with its skip connections, and the conditioning of every block."""
    size, fine, coarse = spec.image_size, spec.width, 2 * spec.width

    def at(channels: int, divisor: int) -> str:
        return shape_text((channels, size // divisor, size // divisor))

    image = shape_text((spec.channels, size, size))
    boxes = [
        Box("Noised image x_t", image, 0, 0, "data"),
        Box("Convolution 3x3, block down1", at(fine, 1), 0, 1),
        Box("Stride 2, block down2", at(coarse, 2), 0, 2),
        Box("Stride 2, middle1, middle2", at(coarse, 4), 0.5, 3.1),
        Box("Upsample, concatenate, up2", f"{2 * coarse} → {at(fine, 2)}", 1, 2),
        Box("Upsample, concatenate, up1", f"{2 * fine} → {at(fine, 1)}", 1, 1),
        Box("GroupNorm, SiLU, 3x3: velocity v", image, 1, 0, "data"),
        Box("Time t: sinusoid", f"{spec.time_width} numbers", 2, 0, "condition"),
        Box("MLP" if spec.num_classes is None else "MLP, + class embedding", f"{spec.time_width} numbers", 2, 1,
            "condition"),
        Box("Shift of channels", "SiLU, Linear: one in every block", 2, 2, "condition"),
    ]  # fmt: skip
    arrows = [
        Arrow(0, 1), Arrow(1, 2), Arrow(2, 3), Arrow(3, 4), Arrow(4, 5), Arrow(5, 6),
        Arrow(1, 5), Arrow(2, 4), Arrow(7, 8), Arrow(8, 9), Arrow(9, 4),
    ]  # fmt: skip
    alt = (
        "Diagram of the U-Net: down to half and a quarter of the image, a middle, up again with skip connections, "
        "and a shift by time in every block."
    )
    return Figure([Diagram(boxes, arrows)], title="The forward pass of the U-Net", columns=1, alt=alt)
