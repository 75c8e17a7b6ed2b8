"""Figures of PixelHDM by kind: samples of held-out captions, trajectories, attention, patches,
tokens, positions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ditlab_models.contract import Samples
from ditlab_models.figure_kinds.attention import catch_attention, image_attention_panels
from ditlab_models.figure_kinds.embeddings import rotary_similarity, time_figure
from ditlab_models.figure_kinds.network import (
    cut_patches,
    modulation_figure,
    module_outputs,
    token_features_figure,
    with_patch_lines,
)
from ditlab_models.figure_makers import FigureInputs, FigureMakers
from ditlab_models.figures import (
    Arrow,
    Bars,
    Box,
    Curve,
    Diagram,
    Figure,
    Heatmap,
    ImageGrid,
    Lines,
    Panel,
)
from ditlab_models.pixelhdm.network import TIME_SCALE, PixelHDM
from ditlab_models.pixelhdm.sampling import PixelHDMSampler
from ditlab_models.pixelhdm.spec import CHANNELS, PixelHDMObjectiveSpec, PixelHDMSpec
from ditlab_models.processes.flow import interpolate, point_velocity
from ditlab_models.processes.flow_figures import (
    FlowProbe,
    flow_schedule_figure,
    probe_makers,
    to_grey,
    to_pictures,
    trajectory_figure,
)
from ditlab_models.tensors import per_sample, to_numpy

NUM_SAMPLES = 16
NUM_TRAJECTORIES = 4
NOISE = 0.25
"""Share of noise in the images whose features and attention are drawn."""
NUM_IMAGES = 32
"""Images whose features are drawn."""
NUM_TIMES = 101
"""Times of `adaln`."""
MAX_SHOWN = 64
"""Patches shown in sequence."""
DISTANCES = 64
"""Distances at which positions are compared."""
MAX_IMAGES = 16
"""Most images of a velocity probe."""


def figure_makers(objective: PixelHDMObjectiveSpec) -> FigureMakers:
    """Return the makers of a trained network's figures by kind."""
    return {
        **probe_makers(lambda inputs: velocity_probe(inputs, objective)),
        "samples": lambda inputs: inputs.sampler.show(_draw(inputs, NUM_SAMPLES)),
        "trajectory": draw_trajectory,
        "patches": draw_patches,
        "attention": draw_attention,
        "adaln": draw_adaln,
        "features": draw_features,
        "noise_schedule": lambda inputs: flow_schedule_figure(objective.time, noise_at=0),
    }


def static_figures(spec: PixelHDMSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: noise, positions, time, the forward pass."""
    figures = {
        "noise_schedule": flow_schedule_figure(PixelHDMObjectiveSpec().time, noise_at=0),
        "time_embedding": time_figure(spec.time_width, TIME_SCALE, denominator="half"),
        "forward_pass": forward_pass_figure(spec),
    }
    if spec.positions == "learned":
        return figures
    return {**figures, "positions": positions_figure(spec)}


def draw_trajectory(inputs: FigureInputs) -> Figure:
    """Draw `trajectory`: a few samples at several times from noise to image, and at all times as an
    animation.
    """
    samples = _draw(inputs, NUM_TRAJECTORIES, trajectory=True)
    assert samples.trajectory is not None
    # the last one of the final projection, if there is one
    times = [*_sampler(inputs).times().tolist(), 1.0]
    return trajectory_figure(samples.trajectory, times[: len(samples.trajectory)])


def _sampler(inputs: FigureInputs) -> PixelHDMSampler:
    assert isinstance(inputs.sampler, PixelHDMSampler)
    return inputs.sampler


def _draw(inputs: FigureInputs, most: int, trajectory: bool = False) -> Samples:
    """Draw samples of the batch's first captions, at most `most`, at the sampler's size."""
    sampler = _sampler(inputs)
    num = min(most, len(inputs.batch["image"]))
    conditions = {name: inputs.batch[name][:num] for name in sampler.row_fields}
    if "caption" in conditions:
        conditions["prompt"] = conditions["caption"]
    conditions["size"] = torch.tensor([sampler.size]).expand(num, 2)
    return inputs.samples(conditions, num, trajectory)


def draw_attention(inputs: FigureInputs) -> Figure:
    """Draw `attention`: maps of three query patches in the patch path, the distance it looks, and
    its share on text.
    """
    network = inputs.trained(PixelHDM)
    noised = noise_images(inputs, 1)
    layers = catch_attention(
        [block.attention for block in network.patch_blocks], lambda: network(*noised)
    )
    rows, columns = (side // network.spec.patch_size for side in noised[0].shape[2:])
    num = rows * columns
    picture = to_grey(inputs.batch["image"][:1])[0]
    seen = to_grey(noised[0])[0]
    among = [each[:, -num:, -num:] for each in layers]
    shares = [each / np.maximum(each.sum(axis=-1, keepdims=True), 1e-12) for each in among]
    panels = image_attention_panels(shares, picture, seen, 1 - NOISE, rows, columns)
    on_text = np.stack([1 - each.sum(axis=-1).mean(axis=-1) for each in among])  # (layers, heads)
    curve = Curve(
        np.arange(1, len(layers) + 1),
        on_text.mean(axis=1),
        "mean of the heads",
        on_text.std(axis=1),
    )
    panels.append(Lines([curve], "Patches' attention to text", "layer", "share of the weight"))
    return Figure(
        panels, title="Attention of the patch path: orange is looked at, the blue patch is looking"
    )


def draw_adaln(inputs: FigureInputs) -> Figure:
    """Draw `adaln`: the modulation before attention in the patch path's blocks, over t."""
    network = inputs.trained(PixelHDM)
    t = torch.linspace(0, 1, NUM_TIMES, device=network.head.weight.device)
    condition = network.time(t)
    modulations = [block.adaln(condition)[0] for block in network.patch_blocks]
    return modulation_figure(modulations, t, "time t", "attention in the patch path")


def draw_features(inputs: FigureInputs) -> Figure:
    """Draw `features`: principal components of the patch path's tokens, of images a quarter of
    which is noise.
    """
    network = inputs.trained(PixelHDM)
    noised = noise_images(inputs, NUM_IMAGES)
    rows, columns = (side // network.spec.patch_size for side in noised[0].shape[2:])
    (tokens,) = module_outputs([network.patch_blocks[-1]], lambda: network(*noised))
    patches = to_numpy(tokens[:, -rows * columns :].float())  # text stands first
    where = f"behind the patch path, t = {1 - NOISE:g}"
    return token_features_figure(patches, rows, columns, to_pictures(noised[0]), (), where)


def draw_patches(inputs: FigureInputs) -> Figure:
    """Draw `patches`: an image as the two paths take it, and the learned projections of its
    patches.
    """
    network = inputs.trained(PixelHDM)
    spec = network.spec
    size = spec.patch_size
    picture = to_pictures(inputs.batch["image"][:1])[0]
    height, width = picture.shape[:2]
    patches = cut_patches(picture, size)
    numbers = size * size * CHANNELS
    shown = min(len(patches), MAX_SHOWN)
    more = "" if shown == len(patches) else f" (the first {shown})"
    in_place = f"Patch path: {len(patches)} patches of {size} x {size}"
    in_sequence = f"In sequence{more}: {numbers} numbers each"
    panels: list[Panel] = [
        ImageGrid(
            picture[None],
            columns=1,
            title=f"Image, pixel path: {height * width} pixels of {CHANNELS} numbers",
        ),
        ImageGrid(with_patch_lines(picture, size)[None], columns=1, title=in_place),
        ImageGrid(
            patches[:shown],
            [str(index) for index in range(shown)],
            max(1, width // size),
            in_sequence,
        ),
    ]
    narrow = spec.bottleneck_width
    embedding = network.patch_embedding
    for linear, title, y_label in (
        (embedding.squeeze, f"Bottleneck: {numbers} -> {narrow}", "number in the patch"),
        (embedding.expand, f"Then SiLU, {narrow} -> {spec.width}", "number in the bottleneck"),
    ):
        weight = to_numpy(linear.weight.float())
        extent = (0.0, float(weight.shape[0]), float(weight.shape[1]), 0.0)
        panels.append(
            Heatmap(weight.T, title, "output", y_label, extent, diverging=True, unit="weight")
        )
    return Figure(panels, title="An image as patches and as pixels", columns=3)


def positions_figure(spec: PixelHDMSpec) -> Figure:
    """Draw the entries of a head by axis, and the similarity of equal vectors by text position, row
    and column.
    """
    names = ("text position", "row", "column")
    widths = spec.mrope_widths
    distance = np.arange(DISTANCES)
    share = np.array(widths) / sum(widths)
    curves = []
    for width in dict.fromkeys(widths):
        label = ", ".join(name for name, each in zip(names, widths, strict=True) if each == width)
        curves.append(Curve(distance, rotary_similarity(distance, width, spec.rope_base), label))
    side = min(16, spec.max_patches)
    rows, columns = np.indices((side, side)) - side // 2
    similarity = share[0] + share[1] * rotary_similarity(rows, widths[1], spec.rope_base)
    similarity = similarity + share[2] * rotary_similarity(columns, widths[2], spec.rope_base)
    texts = [f"{each:.0%}" for each in share]
    centre = (side // 2, side // 2)
    labels = ("distance on the axis", "cosine of these entries")
    panels: list[Panel] = [
        Bars(names, np.array(widths), f"A head's {sum(widths)} entries", "entries", texts=texts),
        Lines(curves, "Equal vectors, turned by one axis", *labels),
        Heatmap(
            similarity,
            "Similarity to the centre patch",
            "column",
            "row",
            mark=centre,
            unit="cosine",
        ),
    ]
    return Figure(
        panels, title=f"Rotary positions of text and image, base {spec.rope_base:g}", columns=3
    )


def forward_pass_figure(spec: PixelHDMSpec) -> Figure:
    """Draw the patch path, the pixel path that it conditions, and text and time beside them."""
    size = spec.patch_size
    pixels = size * size
    numbers = size * size * CHANNELS
    positions = "turned by text position, row, column"
    if spec.positions == "learned":
        positions = "+ learned positions"
    text = "frozen language model"
    if spec.text_encoder == "learned":
        text = f"learned, {spec.text_depth} blocks of bytes"
    boxes = [
        Box("Noised image z_t", "3 x H x W", 1, 0, "data"),
        Box(
            f"Patches of {size} x {size}",
            f"{numbers} → {spec.bottleneck_width} → {spec.width}",
            0,
            1,
        ),
        Box("Text and patches, one sequence", positions, 0, 2),
        Box(
            f"{spec.patch_depth} patch blocks",
            f"{spec.num_heads} gated heads ({spec.num_kv_heads} KV); SwiGLU",
            0,
            3,
        ),
        Box("s_cond, one for each patch", "patch token + time + pooled text", 0, 4, "condition"),
        Box("Pixels", f"Linear {CHANNELS} → {spec.pixel_width}; {pixels} in a patch", 1, 1),
        Box(
            f"{spec.pixel_depth} pixel blocks",
            f"modulated pixel by pixel, 6 x {spec.pixel_width}",
            1,
            4,
        ),
        Box(
            "Token compaction",
            f"{pixels} x {spec.pixel_width} → {spec.width}, attention, and back",
            1,
            5,
        ),
        Box("RMSNorm, head", f"Linear {spec.pixel_width} → {CHANNELS}", 1, 6),
        Box("Velocity v", "3 x H x W", 1, 7, "data"),
        Box("Caption", text, 2, 1, "data"),
        Box(
            "Text tokens, pooled text",
            f"at most {spec.text_length} x {spec.width}",
            2,
            2,
            "condition",
        ),
        Box(
            "Time t: sinusoid of 1000 t, MLP",
            f"{spec.time_width} → {spec.width}",
            2,
            3,
            "condition",
        ),
    ]
    patch_path = ((0, 1), (1, 2), (2, 3), (3, 4))
    pixel_path = ((0, 5), (5, 6), (4, 6), (6, 7), (7, 8), (8, 9))
    arrows = [
        Arrow(start, end) for start, end in (*patch_path, *pixel_path, (10, 11), (11, 2), (12, 3))
    ]
    return Figure(
        [Diagram(boxes, arrows)], title="The forward pass of PixelHDM: two paths", columns=1
    )


def velocity_probe(inputs: FigureInputs, objective: PixelHDMObjectiveSpec) -> FlowProbe:
    """Return the network's velocity and noise for the batch's first images, under their own
    captions.
    """
    condition = {name: values[:MAX_IMAGES] for name, values in inputs.batch.items()}

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        output: Tensor = inputs.network(x, t, condition).to(x)
        if objective.prediction == "velocity":
            return output
        return point_velocity(x, per_sample(t, x), output, noise_at=0)

    return FlowProbe(
        velocity, condition["image"], inputs.noise_like(condition["image"]), noise_at=0
    )


def noise_images(inputs: FigureInputs, most: int) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    """Noise the batch's first images by NOISE: the network's inputs z_t (B, 3, H, W), t (B,) and
    condition.
    """
    condition = {name: values[:most] for name, values in inputs.batch.items()}
    image = condition["image"]
    t = torch.full((len(image),), 1 - NOISE, device=image.device)
    return interpolate(image, inputs.noise_like(image), t, noise_at=0), t, condition
