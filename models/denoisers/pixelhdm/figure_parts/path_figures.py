"""Figures of both paths of a trained PixelHDM: principal components of patches' and of pixels' features.

B batch, N patches, M = P * P pixels of a patch, W width of a pixel.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from denoisers.figure_kinds.features import principal_components, token_features_figure
from denoisers.figure_kinds.modulation import modulation_arrays, modulation_figure
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Figure, ImageGrid
from denoisers.layers.sandwich_block import SandwichBlock
from denoisers.pixelhdm.figure_parts.probe import block_outputs, noise_images, trained_network, velocity_probe
from denoisers.pixelhdm.spec import PixelHDMObjectiveSpec
from denoisers.processes.flow.figures import to_pictures
from denoisers.processes.flow.linear_path import endpoints, interpolate

NOISE = 0.25
NUM_IMAGES = 32
NUM_ROWS = 4
NUM_TIMES = 101


def draw_adaln(inputs: FigureInputs) -> Figure:
    """Draw `adaln`: the modulation before attention in the patch path's blocks, over t."""
    network = trained_network(inputs)
    t = torch.linspace(0, 1, NUM_TIMES, device=network.head.weight.device)
    condition = network.time(t)
    blocks = []
    for block in network.patch_blocks:
        assert isinstance(block, SandwichBlock)
        blocks.append(modulation_arrays(block.adaln(condition)[0]))
    return modulation_figure(blocks, t.cpu().numpy(), "time t", "attention in the patch path")


def draw_features(inputs: FigureInputs) -> Figure:
    """Draw `features`: principal components of the patch path's tokens, of images a quarter of which is noise."""
    network = trained_network(inputs)
    noised = noise_images(inputs, NOISE, NUM_IMAGES)
    rows, columns = (side // network.spec.patch_size for side in noised.z_t.shape[2:])
    (tokens,) = block_outputs(network, [network.patch_blocks[-1]], noised)
    patches = tokens[:, -rows * columns :].float().cpu().numpy()  # text stands first
    where = f"behind the patch path, t = {1 - NOISE:g}"
    return token_features_figure(patches, rows, columns, to_pictures(noised.z_t), (), where)


def draw_paths(inputs: FigureInputs, objective: PixelHDMObjectiveSpec) -> Figure:
    """Draw `paths`: a few images through both paths, each block's output as its first three components in colours."""
    network = trained_network(inputs)
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
