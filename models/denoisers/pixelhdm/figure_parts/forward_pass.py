"""Diagram of PixelHDM's forward pass through both paths, with the shapes of a spec."""

from __future__ import annotations

from denoisers.figures import Arrow, Box, Diagram, Figure
from denoisers.pixelhdm.model_spec import CHANNELS, PixelHDMSpec


def forward_pass_figure(spec: PixelHDMSpec) -> Figure:
    """Draw the patch path, the pixel path that it conditions, and text and time beside them."""
    size = spec.patch_size
    pixels, numbers = size * size, size * size * CHANNELS
    positions = "turned by text position, row, column" if spec.positions == "mrope" else "+ learned positions"
    text = f"learned, {spec.text_depth} blocks of bytes" if spec.text_encoder == "learned" else "frozen language model"
    boxes = [
        Box("Noised image z_t", "3 x H x W", 1, 0, "data"),
        Box(f"Patches of {size} x {size}", f"{numbers} → {spec.bottleneck_width} → {spec.width}", 0, 1),
        Box("Text and patches, one sequence", positions, 0, 2),
        Box(f"{spec.patch_depth} patch blocks", f"{spec.num_heads} gated heads ({spec.num_kv_heads} KV); SwiGLU", 0, 3),
        Box("s_cond, one for each patch", "patch token + time + pooled text", 0, 4, "condition"),
        Box("Pixels", f"Linear {CHANNELS} → {spec.pixel_width}; {pixels} in a patch", 1, 1),
        Box(f"{spec.pixel_depth} pixel blocks", f"modulated pixel by pixel, 6 x {spec.pixel_width}", 1, 4),
        Box("Token compaction", f"{pixels} x {spec.pixel_width} → {spec.width}, attention, and back", 1, 5),
        Box("RMSNorm, head", f"Linear {spec.pixel_width} → {CHANNELS}", 1, 6),
        Box("Velocity v", "3 x H x W", 1, 7, "data"),
        Box("Caption", text, 2, 1, "data"),
        Box("Text tokens, pooled text", f"at most {spec.text_length} x {spec.width}", 2, 2, "condition"),
        Box("Time t: sinusoid of 1000 t, MLP", f"{spec.time_width} → {spec.width}", 2, 3, "condition"),
    ]
    arrows = [
        Arrow(0, 1), Arrow(1, 2), Arrow(2, 3), Arrow(3, 4), Arrow(0, 5), Arrow(5, 6), Arrow(4, 6), Arrow(6, 7),
        Arrow(7, 8), Arrow(8, 9), Arrow(10, 11), Arrow(11, 2), Arrow(12, 3),
    ]  # fmt: skip
    alt = (
        f"Diagram of PixelHDM: patches and text through {spec.patch_depth} blocks, whose tokens with time and text "
        f"condition {spec.pixel_depth} blocks of pixels, from which the velocity is read."
    )
    return Figure([Diagram(boxes, arrows)], title="The forward pass of PixelHDM: two paths", columns=1, alt=alt)
