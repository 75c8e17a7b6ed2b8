"""Figures of PixelHDM by kind: samples of held-out captions, trajectories, attention, both paths, tokens, guidance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import Samples
from denoisers.figure_kinds.attention import (
    AttentionParts,
    attention_steps_figure,
    catch_attention,
    image_attention_panels,
)
from denoisers.figure_kinds.embeddings import rotary_similarity, time_figure
from denoisers.figure_kinds.flow import (
    FlowProbe,
    denoising_figure,
    flow_schedule_figure,
    loss_by_time_figure,
    receptive_field_figure,
)
from denoisers.figure_kinds.network import (
    cut_patches,
    modulation_figure,
    module_outputs,
    principal_components,
    token_features_figure,
    with_patch_lines,
)
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Arrow, Bars, Box, Curve, Diagram, Figure, Heatmap, ImageGrid, Lines, Panel
from denoisers.layers.adaln import SandwichBlock
from denoisers.layers.attention import GatedAttention
from denoisers.pixelhdm.network import TIME_SCALE, PixelBlock, PixelHDM
from denoisers.pixelhdm.sampling import PixelHDMSampler
from denoisers.pixelhdm.spec import CHANNELS, PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from denoisers.processes.flow import endpoints, interpolate, point_velocity
from denoisers.processes.flow_figures import to_grey, to_pictures, trajectory_figure
from denoisers.processes.flow_sampling import SCHEDULES, Guidance
from denoisers.processes.frequency_loss import frequency_weights, quantisation_tables

NUM_SAMPLES = 16
NUM_TRAJECTORIES = 4
GATE_TIMES = (0.1, 0.5, 0.9)
"""Mostly noise, half noise, hardly any noise."""
NUM_GATED = 8
"""Most images over which gates are averaged."""
NOISE = 0.25
"""Share of noise in the images whose features and attention are drawn."""
NUM_IMAGES = 32
"""Images whose features are drawn."""
NUM_ROWS = 4
"""Images of `paths`, a row each."""
NUM_TIMES = 101
"""Times of `adaln`."""
MAX_SHOWN = 64
"""Patches shown in sequence."""
DISTANCES = 64
"""Distances at which positions are compared."""
NUM_GUIDANCE_TIMES = 401
MAX_IMAGES = 16
"""Most images of a velocity probe."""


def figure_makers(objective: PixelHDMObjectiveSpec) -> dict[str, FigureMaker]:
    """Return the makers of a trained network's figures by kind."""
    return {
        "samples": draw_samples,
        "trajectory": draw_trajectory,
        "denoising": lambda inputs: denoising_figure(velocity_probe(inputs, objective)),
        "loss_by_time": lambda inputs: loss_by_time_figure(velocity_probe(inputs, objective)),
        "receptive_field": lambda inputs: receptive_field_figure(velocity_probe(inputs, objective, NUM_GATED)),
        "patches": draw_patches,
        "attention": draw_attention,
        "attention_steps": draw_attention_steps,
        "attention_gates": draw_attention_gates,
        "adaln": draw_adaln,
        "features": draw_features,
        "paths": partial(draw_paths, objective=objective),
        "noise_schedule": lambda inputs: flow_schedule_figure(objective.time, noise_at=0),
        "guidance": draw_guidance,
        "frequency_weights": lambda inputs: frequency_weights_figure(objective.frequency.quality),
    }


def static_figures(spec: PixelHDMSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: noise, guidance, positions, time, frequency weights, the forward pass."""
    objective = PixelHDMObjectiveSpec()
    figures = {
        "noise_schedule": flow_schedule_figure(objective.time, noise_at=0),
        "guidance": guidance_figure(PixelHDMSamplingSpec()),
        "time_embedding": time_figure(spec.time_width, TIME_SCALE, denominator="half"),
        "frequency_weights": frequency_weights_figure(objective.frequency.quality),
        "forward_pass": forward_pass_figure(spec),
    }
    return figures if spec.positions == "learned" else {**figures, "positions": positions_figure(spec)}


def draw_samples(inputs: FigureInputs) -> Figure:
    """Draw `samples`: one for each of the batch's first captions, at the sampler's size."""
    return inputs.sampler.show(_draw(inputs, NUM_SAMPLES))


def draw_trajectory(inputs: FigureInputs) -> Figure:
    """Draw `trajectory`: a few samples at several times from noise to image, and at all times as an animation."""
    samples = _draw(inputs, NUM_TRAJECTORIES, trajectory=True)
    assert samples.trajectory is not None and isinstance(inputs.sampler, PixelHDMSampler)
    times = inputs.sampler.times().tolist()
    projected = [1.0] if inputs.sampler.spec.final_projection else []
    return trajectory_figure(samples.trajectory, [*times, *projected])


def _draw(inputs: FigureInputs, most: int, trajectory: bool = False) -> Samples:
    """Draw samples of the batch's first captions: at most `most`, and no more than one batch of the sampler."""
    sampler = inputs.sampler
    assert isinstance(sampler, PixelHDMSampler)
    num = min(most, len(inputs.batch["image"]), sampler.max_batch_size or most)
    conditions = {name: inputs.batch[name][:num] for name in sampler.row_fields}
    if "caption" in conditions:
        conditions["prompt"] = conditions["caption"]
    conditions["size"] = torch.tensor([sampler.size]).expand(num, 2)
    return sampler.sample(inputs.network, conditions, num, inputs.generator, trajectory)


def draw_attention_gates(inputs: FigureInputs) -> Figure:
    """Draw `attention_gates`: the mean gate of each head in every block of both paths, at three times.

    Means over the patches of the batch's first images, noised; text is left out.
    """
    network = inputs.trained(PixelHDM)
    paths = {
        "Patch path": [block.attention for block in cast("list[SandwichBlock]", list(network.patch_blocks))],
        "Pixel path": [block.compaction.attention for block in cast("list[PixelBlock]", list(network.pixel_blocks))],
    }
    batch = {name: values[:NUM_GATED] for name, values in inputs.batch.items()}
    image = batch["image"]
    noise = inputs.noise_like(image)
    by_time = [_mean_gates(network, list(paths.values()), batch, noise, time) for time in GATE_TIMES]
    panels = [
        _gates_panel(by_time[number][path], f"{name}, t = {time:g}")
        for path, name in enumerate(paths)
        for number, time in enumerate(GATE_TIMES)
    ]
    return Figure(panels, title="How open attention's gates are (0.5 before training)", columns=len(GATE_TIMES))


def _mean_gates(
    network: PixelHDM, paths: list[list[GatedAttention]], batch: Mapping[str, Tensor], noise: Tensor, time: float
) -> list[np.ndarray]:
    """Mean gates (blocks, heads) of every path in a forward pass at one time."""
    num_patches = noise[0, 0].numel() // network.spec.patch_size**2
    means: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, GatedAttention)
        gates = module.gates(args[0][:, -num_patches:])  # text, where there is any, stands first
        means[module] = gates.float().mean((0, 1, 3))

    handles = [attention.register_forward_pre_hook(keep) for path in paths for attention in path]
    try:
        t = torch.full((len(noise),), time, device=noise.device)
        network(interpolate(batch["image"], noise, t, noise_at=0), t, batch)
    finally:
        for handle in handles:
            handle.remove()
    return [torch.stack([means[attention] for attention in path]).cpu().numpy() for path in paths]


def _gates_panel(gates: np.ndarray, title: str) -> Heatmap:
    blocks, heads = ([str(number + 1) for number in range(size)] for size in gates.shape)
    return Heatmap(gates, title, "head", "block", limits=(0.0, 1.0), x_names=heads, y_names=blocks, unit="mean gate")


def frequency_weights_figure(quality: int) -> Figure:
    """Draw JPEG's quantisation steps, and the frequency loss's weights of coefficients' errors."""
    steps, weights = quantisation_tables(quality), frequency_weights(quality).values.numpy()
    axes = ("horizontal frequency", "vertical frequency")
    largest_step = float(max(table.max() for table in steps))
    panels = [
        Heatmap(table.numpy(), f"Quantisation steps of {name}", *axes, limits=(1.0, largest_step), unit="step")
        for name, table in (("Y", steps.luma), ("Cb and Cr", steps.chroma))
    ]
    panels += [
        Heatmap(
            table, f"Weights of errors in {name} (mean 1)", *axes, limits=(0.0, float(weights.max())), unit="weight"
        )
        for name, table in (("Y", weights[0]), ("Cb and Cr", weights[1]))
    ]
    return Figure(panels, title=f"The frequency loss at JPEG quality {quality}")


def draw_attention(inputs: FigureInputs) -> Figure:
    """Draw `attention`: maps of three query patches in the patch path, the distance it looks, and its share on text."""
    network = inputs.trained(PixelHDM)
    z_t, layers = _attend(inputs)
    rows, columns = (side // network.spec.patch_size for side in z_t.shape[2:])
    num = rows * columns
    picture, seen = to_grey(inputs.batch["image"][:1])[0], to_grey(z_t)[0]
    names = ["image", f"what the network sees, t = {1 - NOISE:g}"]
    panels: list[Panel] = [ImageGrid(np.stack([picture, seen]), names, 2)]
    among = [each.weights[:, -num:, -num:] for each in layers]
    shares = [each / np.maximum(each.sum(axis=-1, keepdims=True), 1e-12) for each in among]
    panels += image_attention_panels(shares, picture, rows, columns)
    on_text = np.stack([1 - each.sum(axis=-1).mean(axis=-1) for each in among])  # (layers, heads)
    curve = Curve(np.arange(1, len(layers) + 1), on_text.mean(axis=1), "mean of the heads", on_text.std(axis=1))
    panels.append(Lines([curve], "Patches' attention to text", "layer", "share of the weight"))
    return Figure(panels, title="Attention of the patch path: orange is looked at, the blue patch is looking")


def draw_attention_steps(inputs: FigureInputs) -> Figure:
    """Draw `attention_steps`: one head of the middle block of the patch path, from its input to its output."""
    return attention_steps_figure(_attend(inputs)[1], "patch block", "temperature · cos(Q, K)")


def _attend(inputs: FigureInputs) -> tuple[torch.Tensor, list[AttentionParts]]:
    network = inputs.trained(PixelHDM)
    noised = noise_images(inputs, NOISE, 1)
    attentions = [block.attention for block in cast("list[SandwichBlock]", list(network.patch_blocks))]
    with torch.no_grad():
        layers = catch_attention(attentions, lambda: network(noised.z_t, noised.t, noised.condition))
    return noised.z_t, layers


def draw_adaln(inputs: FigureInputs) -> Figure:
    """Draw `adaln`: the modulation before attention in the patch path's blocks, over t."""
    network = inputs.trained(PixelHDM)
    t = torch.linspace(0, 1, NUM_TIMES, device=network.head.weight.device)
    condition = network.time(t)
    modulations = [block.adaln(condition)[0] for block in cast("list[SandwichBlock]", list(network.patch_blocks))]
    return modulation_figure(modulations, t, "time t", "attention in the patch path")


def draw_features(inputs: FigureInputs) -> Figure:
    """Draw `features`: principal components of the patch path's tokens, of images a quarter of which is noise."""
    network = inputs.trained(PixelHDM)
    noised = noise_images(inputs, NOISE, NUM_IMAGES)
    rows, columns = (side // network.spec.patch_size for side in noised.z_t.shape[2:])
    (tokens,) = block_outputs(network, [network.patch_blocks[-1]], noised)
    patches = tokens[:, -rows * columns :].float().cpu().numpy()  # text stands first
    where = f"behind the patch path, t = {1 - NOISE:g}"
    return token_features_figure(patches, rows, columns, to_pictures(noised.z_t), (), where)


def draw_paths(inputs: FigureInputs, objective: PixelHDMObjectiveSpec) -> Figure:
    """Draw `paths`: a few images through both paths, each block's output as its first three components in colours."""
    network = inputs.trained(PixelHDM)
    size = network.spec.patch_size
    state = inputs.generator.get_state()
    noised = noise_images(inputs, 2 * NOISE, NUM_ROWS)
    inputs.generator.set_state(state)
    probe = velocity_probe(inputs, objective, NUM_ROWS)
    rows, columns = (side // size for side in noised.z_t.shape[2:])
    patch_blocks, pixel_blocks = list(network.patch_blocks), list(network.pixel_blocks)
    chosen = sorted({0, len(patch_blocks) // 2, len(patch_blocks) - 1})
    outputs = block_outputs(network, [*(patch_blocks[number] for number in chosen), *pixel_blocks], noised)
    images = probe.image
    names, stages = ["image", "what the network sees"], [to_pictures(images), to_pictures(noised.z_t)]
    for number, tokens in zip(chosen, outputs, strict=False):
        names.append(f"patch block {number + 1}")
        patches = _colours(tokens[:, -rows * columns :]).reshape(-1, rows, columns, 3)
        stages.append(patches.repeat(size, axis=1).repeat(size, axis=2))
    for number, pixels in enumerate(outputs[len(chosen) :]):
        names.append(f"pixel block {number + 1}")
        grid = _colours(pixels).reshape(-1, rows, columns, size, size, 3)
        stages.append(grid.swapaxes(2, 3).reshape(-1, rows * size, columns * size, 3))
    x_t = interpolate(probe.image, probe.noise, noised.t, noise_at=0)
    _, guess = endpoints(x_t, probe.velocity(x_t, noised.t), noised.t)
    names.append("guess of the image")
    stages.append(to_pictures(guess))
    every = np.stack(stages, axis=1).reshape(-1, *stages[0].shape[1:])  # image by image
    captions = [*names, *[""] * (len(every) - len(names))]
    title = f"Both paths at t = {1 - 2 * NOISE:g}: the first three components of each block's output, as colours"
    return Figure([ImageGrid(every, captions, len(stages))], title=title, columns=1)


def _colours(values: Tensor) -> np.ndarray:
    """First three principal components of (B, ..., D) as colours in [0, 1]: (B * ..., 3)."""
    flat = values.float().flatten(0, -2).cpu().numpy()
    scores = principal_components(flat, 3).scores
    scores = np.pad(scores, ((0, 0), (0, 3 - scores.shape[1])))
    low, high = np.quantile(scores, 0.01, axis=0), np.quantile(scores, 0.99, axis=0)
    colours: np.ndarray = ((scores - low) / np.maximum(high - low, 1e-12)).clip(0, 1)
    return colours


def draw_patches(inputs: FigureInputs) -> Figure:
    """Draw `patches`: an image as the two paths take it, and the learned projections of its patches."""
    network = inputs.trained(PixelHDM)
    spec, size = network.spec, network.spec.patch_size
    picture = to_pictures(inputs.batch["image"][:1])[0]
    height, width = picture.shape[:2]
    patches = cut_patches(picture, size)
    squeeze = network.patch_embedding.squeeze.weight.detach().float().cpu().numpy()
    expand = network.patch_embedding.expand.weight.detach().float().cpu().numpy()
    shown = min(len(patches), MAX_SHOWN)
    numbers = size * size * CHANNELS
    more = "" if shown == len(patches) else f" (the first {shown})"
    panels: list[Panel] = [
        ImageGrid(picture[None], columns=1, title=f"Image, pixel path: {height * width} pixels of {CHANNELS} numbers"),
        ImageGrid(
            with_patch_lines(picture, size)[None], columns=1,
            title=f"Patch path: {len(patches)} patches of {size} x {size}",
        ),
        ImageGrid(
            patches[:shown], [str(index) for index in range(shown)], max(1, width // size),
            f"In sequence{more}: {numbers} numbers each",
        ),
        _weights(squeeze, f"Bottleneck: {numbers} -> {spec.bottleneck_width}", "number in the patch"),
        _weights(expand, f"Then SiLU, {spec.bottleneck_width} -> {spec.width}", "number in the bottleneck"),
    ]  # fmt: skip
    return Figure(panels, title="An image as patches and as pixels", columns=3)


def _weights(values: np.ndarray, title: str, y_label: str) -> Heatmap:
    outputs, entries = values.shape
    extent = (0.0, float(outputs), float(entries), 0.0)
    return Heatmap(values.T, title, "output", y_label, extent, diverging=True, unit="weight")


def positions_figure(spec: PixelHDMSpec) -> Figure:
    """Draw the entries of a head by axis, and the similarity of equal vectors by text position, row and column."""
    names = ("text position", "row", "column")
    widths = spec.mrope_widths
    distance = np.arange(DISTANCES)
    by_width = {
        width: ", ".join(name for name, each in zip(names, widths, strict=True) if each == width) for width in widths
    }
    share = np.array(widths) / sum(widths)
    side = min(16, spec.max_patches)
    rows, columns = np.indices((side, side))
    centre = (side // 2, side // 2)
    similarity = (
        share[0]
        + share[1] * rotary_similarity(rows - centre[0], widths[1], spec.rope_base)
        + share[2] * rotary_similarity(columns - centre[1], widths[2], spec.rope_base)
    )
    panels: list[Panel] = [
        Bars(
            names, np.array(widths), f"A head's {sum(widths)} entries", "entries",
            texts=[f"{each:.0%}" for each in share],
        ),
        Lines(
            [
                Curve(distance, rotary_similarity(distance, width, spec.rope_base), name)
                for width, name in by_width.items()
            ],
            "Equal vectors, turned by one axis", "distance on the axis", "cosine of these entries",
        ),
        Heatmap(similarity, "Similarity to the centre patch", "column", "row", mark=centre, unit="cosine"),
    ]  # fmt: skip
    return Figure(panels, title=f"Rotary positions of text and image, base {spec.rope_base:g}", columns=3)


def draw_guidance(inputs: FigureInputs) -> Figure:
    """Draw `guidance`: the scale over time by schedule, under the run's settings of sampling."""
    assert isinstance(inputs.sampler, PixelHDMSampler)
    return guidance_figure(inputs.sampler.spec)


def guidance_figure(spec: PixelHDMSamplingSpec) -> Figure:
    """Draw the guidance scale of every schedule at the spec's scale, bound and interval, its own schedule first."""
    t = np.linspace(0, 1, NUM_GUIDANCE_TIMES)
    names = sorted(SCHEDULES, key=lambda name: name != spec.guidance_schedule)
    curves = []
    for name in names:
        guidance = Guidance(spec.guidance, name, spec.min_scale, spec.interval)
        label = f"{name} (sampling.guidance_schedule)" if name == spec.guidance_schedule else name
        curves.append(Curve(t, np.array([guidance.scale_at(float(time)) for time in t]), label))
    start, end = spec.interval
    title = f"At least {spec.min_scale:g}; 1 outside {start:g} < t < {end:g}"
    lines = Lines(curves, title, "time t (0: noise, 1: data)", "guidance scale")
    return Figure([lines], title=f"Guidance over time, sampling.guidance={spec.guidance:g}", columns=1)


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


@dataclass(frozen=True)
class NoisedImages:
    """Images at one share of noise, with their texts."""

    z_t: Tensor
    """(B, 3, H, W)."""
    t: Tensor
    """(B,)."""
    condition: Mapping[str, Tensor]


def velocity_probe(inputs: FigureInputs, objective: PixelHDMObjectiveSpec, most: int = MAX_IMAGES) -> FlowProbe:
    """Return the network's velocity and noise for the batch's first images, under their own captions."""
    network = inputs.trained(PixelHDM)
    image = inputs.batch["image"][:most]
    noise = inputs.noise_like(image)
    condition = {name: values[:most] for name, values in inputs.batch.items()}

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        output = network(x, t, condition)
        assert isinstance(output, Tensor)
        output = output.to(x)
        if objective.prediction == "velocity":
            return output
        return point_velocity(x, t.view(-1, 1, 1, 1), output, noise_at=0)

    return FlowProbe(velocity, image, noise, noise_at=0)


def noise_images(inputs: FigureInputs, share: float, most: int) -> NoisedImages:
    """Noise the batch's first images by a share."""
    image = inputs.batch["image"][:most]
    noise = inputs.noise_like(image)
    t = torch.full((len(image),), 1 - share, device=image.device)
    condition = {name: values[:most] for name, values in inputs.batch.items()}
    return NoisedImages(interpolate(image, noise, t, noise_at=0), t, condition)


def block_outputs(network: PixelHDM, blocks: list[nn.Module], noised: NoisedImages) -> list[Tensor]:
    """Return the outputs of blocks in one forward pass, in the blocks' order."""
    return module_outputs(blocks, lambda: network(noised.z_t, noised.t, noised.condition))
