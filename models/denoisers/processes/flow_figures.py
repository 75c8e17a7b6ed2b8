"""Figures of image flows: samples, and their trajectories from noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from denoisers.contract import Samples
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Figure, ImageGrid

NUM_SAMPLES = 64
MAX_CLASS_COLUMNS = 16
NUM_STILL_TIMES = 7
"""Columns of a trajectory's still."""
NUM_TRAJECTORIES = 4
"""Rows of a trajectory's still."""
MAX_FRAMES = 26


def to_pictures(images: Tensor) -> np.ndarray:
    """Convert (num, channels, height, width) in [-1, 1] to (num, height, width), or (num, height, width, 3), in [0, 1].

    Images with neither 1 nor 3 channels are shown as the mean of their channels.
    """
    unit = ((images.detach().float().cpu() + 1) / 2).clamp(0, 1)
    if unit.shape[1] == 3:
        return unit.permute(0, 2, 3, 1).numpy()
    return unit.mean(1).numpy()


def to_grey(images: Tensor) -> np.ndarray:
    """Convert (num, channels, height, width) in [-1, 1] to (num, height, width) in [0, 1]: the mean of the channels."""
    return to_pictures(images.mean(1, keepdim=True))


def sample_figure(samples: Samples, title: str = "") -> Figure:
    """Draw samples with their labels; classes in turn get a column each."""
    label = samples.conditions.get("label")
    captions = [] if label is None else [str(value) for value in label.tolist()]
    num_labels = len(set(captions))
    columns = num_labels if 1 < num_labels <= MAX_CLASS_COLUMNS else 8
    named = f" of {', '.join(dict.fromkeys(captions))}, in turn" if captions else ""
    alt = f"{len(samples.values)} samples{named}, {columns} in a row"
    grid = ImageGrid(to_pictures(samples.values), captions, columns)
    return Figure([grid], title=title, columns=1, alt=f"{title}: {alt}" if title else alt)


def draw_samples(inputs: FigureInputs) -> Figure:
    """Draw `samples`: as many as fill rows of 8, or rows of every class."""
    conditions = inputs.sampler.conditions(NUM_SAMPLES)
    num = NUM_SAMPLES
    if "label" in conditions:
        num_classes = len(conditions["label"].unique())
        num -= num % num_classes
        conditions = {name: values[:num] for name, values in conditions.items()}
    return inputs.sampler.show(inputs.sampler.sample(inputs.network, conditions, num, inputs.generator))


def draw_trajectory(inputs: FigureInputs) -> Figure:
    """Draw `trajectory`: a few samples at several times from t = 1 to t = 0, and at all times as an animation."""
    conditions = inputs.sampler.conditions(NUM_TRAJECTORIES)
    samples = inputs.sampler.sample(inputs.network, conditions, NUM_TRAJECTORIES, inputs.generator, trajectory=True)
    assert samples.trajectory is not None
    return trajectory_figure(samples.trajectory, torch.linspace(1, 0, len(samples.trajectory)).tolist())


def trajectory_figure(trajectory: Tensor, times: Sequence[float]) -> Figure:
    """Draw frames (frames, num, channels, height, width), noise first: a row for each sample, a column for a time."""
    num_frames, num = trajectory.shape[:2]
    still_times = _evenly_spaced(num_frames - 1, NUM_STILL_TIMES)
    still = trajectory[still_times].transpose(0, 1).flatten(0, 1)  # (num * times, channels, height, width)
    captions = [f"t={times[frame]:.2f}" for frame in still_times] * num
    frames = []
    for frame in _evenly_spaced(num_frames - 1, MAX_FRAMES):
        grid = ImageGrid(to_pictures(trajectory[frame]), columns=num)
        frames.append(Figure([grid], title=f"t = {times[frame]:.2f}", columns=1))
    title = f"From noise at t={times[0]:g} to data at t={times[-1]:g}"
    alt = f"{num} samples, a row each, at {len(still_times)} times from noise at t = {times[0]:g} to t = {times[-1]:g}."
    return Figure([ImageGrid(to_pictures(still), captions, len(still_times))], title, columns=1, frames=frames, alt=alt)


def _evenly_spaced(last: int, num: int) -> list[int]:
    """At most `num` different integers from 0 to `last`, both included, evenly spaced."""
    return sorted({round(value) for value in torch.linspace(0, last, num).tolist()})
