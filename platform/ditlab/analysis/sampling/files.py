"""Files of drawn samples. Imports matplotlib, which fills its cache below DITLAB_HOME."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from denoisers.contract import PicturingSampler, Samples
from denoisers.figures import Figure
from ditlab.analysis.sampling.pictures import save_pictures
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.text_file import save_text


def save_samples(sampler: Any, drawn: Samples, origin: Mapping[str, str], folder: Path) -> list[Path]:
    """Write samples into `folder` and return the files, the picture of all samples first.

    `samples.safetensors` holds numbers and conditions, `samples.txt` text, `trajectory.gif` the solver steps; families
    that draw pictures get an image file for each sample, with `origin` in it. Raises OSError or SafetensorError where
    the disk refuses.
    """
    tensors = {"values": drawn.values, **drawn.conditions}
    if drawn.trajectory is not None:
        tensors["trajectory"] = drawn.trajectory
    numbers = folder / "samples.safetensors"
    save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, numbers)
    figure = sampler.show(drawn)
    files = [save_figure(figure, folder / "samples.png"), numbers]
    files += filter(None, [save_text(figure, folder / "samples.txt")])
    if isinstance(sampler, PicturingSampler):
        files += save_pictures(sampler.pictures(drawn), origin, folder)
    if drawn.trajectory is not None:
        files.append(save_figure(trajectory_figure(sampler, drawn), folder / "trajectory.gif"))
    return files


def trajectory_figure(sampler: Any, drawn: Samples) -> Figure:
    """An animation of the samples over the solver steps, of at most 26 distinct frames."""
    frames = drawn.trajectory
    assert frames is not None
    picked = sorted({round(i * (len(frames) - 1) / 25) for i in range(26)})
    shown = [sampler.show(Samples(frames[index], drawn.conditions)) for index in picked]
    return Figure(panels=shown[-1].panels, columns=shown[-1].columns, frames=[*shown, *[shown[-1]] * 5])
