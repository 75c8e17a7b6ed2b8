"""Pictures that every flow of images has: samples, and how they come out of the noise."""

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
NUM_MOMENTS = 7
"""Columns of a trajectory's still."""
NUM_TRAJECTORIES = 4
"""Rows of a trajectory's still."""
MAX_FRAMES = 26


def to_pictures(images: Tensor) -> np.ndarray:
    """(num, channels, height, width) in [-1, 1] -> (num, height, width), or (num, height, width, 3), in [0, 1].

    Neither 1 nor 3 channels: their mean is shown.
    """
    unit = ((images.detach().float().cpu() + 1) / 2).clamp(0, 1)
    if unit.shape[1] == 3:
        return unit.permute(0, 2, 3, 1).numpy()
    return unit.mean(1).numpy()


def sample_figure(samples: Samples, title: str = "") -> Figure:
    """The samples with their labels; classes in turn get a column each."""
    label = samples.conditions.get("label")
    captions = [] if label is None else [str(value) for value in label.tolist()]
    num_labels = len(set(captions))
    columns = num_labels if 1 < num_labels <= MAX_CLASS_COLUMNS else 8
    return Figure([ImageGrid(to_pictures(samples.values), captions, columns)], title=title, columns=1)


def draw_samples(inputs: FigureInputs) -> Figure:
    """`samples`: as many as fill rows of 8, or of every class."""
    conditions = inputs.sampler.conditions(NUM_SAMPLES)
    num = NUM_SAMPLES
    if "label" in conditions:
        num_classes = len(conditions["label"].unique())
        num -= num % num_classes
        conditions = {name: values[:num] for name, values in conditions.items()}
    return inputs.sampler.show(inputs.sampler.sample(inputs.network, conditions, num, inputs.generator))


def draw_trajectory(inputs: FigureInputs) -> Figure:
    """`trajectory`: a few samples at several times from t = 1 to t = 0, and all of it as an animation."""
    conditions = inputs.sampler.conditions(NUM_TRAJECTORIES)
    samples = inputs.sampler.sample(inputs.network, conditions, NUM_TRAJECTORIES, inputs.generator, trajectory=True)
    assert samples.trajectory is not None
    return trajectory_figure(samples.trajectory, torch.linspace(1, 0, len(samples.trajectory)).tolist())


def trajectory_figure(trajectory: Tensor, times: Sequence[float]) -> Figure:
    """(frames, num, channels, height, width), each frame at its time, noise first: a row a sample, a column a time."""
    num_frames, num = trajectory.shape[:2]
    moments = _spread(num_frames - 1, NUM_MOMENTS)
    still = trajectory[moments].transpose(0, 1).flatten(0, 1)  # (num * moments, channels, height, width)
    captions = [f"t={times[moment]:.2f}" for moment in moments] * num
    frames = []
    for moment in _spread(num_frames - 1, MAX_FRAMES):
        grid = ImageGrid(to_pictures(trajectory[moment]), columns=num)
        frames.append(Figure([grid], title=f"t = {times[moment]:.2f}", columns=1))
    title = f"Samples on their way from noise (t = {times[0]:g}) to data (t = {times[-1]:g})"
    return Figure([ImageGrid(to_pictures(still), captions, len(moments))], title, columns=1, frames=frames)


def _spread(last: int, num: int) -> list[int]:
    """At most `num` different integers from 0 to `last`, both included, evenly spread."""
    return sorted({round(value) for value in torch.linspace(0, last, num).tolist()})
