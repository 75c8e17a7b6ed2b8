"""Figures of a network's inside: principal components of its features, modulation of its norms, its
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

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
    PointGroup,
    Points,
)
from ditlab_models.layers.adaln import GatedModulation, Modulation
from ditlab_models.tensors import to_numpy

NUM_PICTURES = 8
NUM_SHARES = 10
NUM_DIMENSIONS = 4
"""Dimensions drawn one by one."""
Step = tuple[str, str]
"""Name and detail of a box."""
LINE_COLOUR = (0.84, 0.37, 0.0)
ENLARGEMENT = 4
"""Screen pixels an image pixel before the grid's lines, one screen pixel thick, are drawn between
patches.
"""


class Components(NamedTuple):
    """Principal components of vectors."""

    scores: np.ndarray
    """(num, components), in the order of falling variance; 0 in components beyond the vectors'
    rank.
    """
    shares: np.ndarray
    """Share of the variance of each component that there is."""


def principal_components(vectors: np.ndarray, num: int = NUM_SHARES) -> Components:
    """Compute the first components of vectors (num, D). The largest entry of each is positive,
    which fixes signs.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, spread, right = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])
    signs[signs == 0] = 1
    total = max(float((spread**2).sum()), 1e-30)
    scores = (left * spread * signs)[:, :num]
    return Components(
        np.pad(scores, ((0, 0), (0, num - scores.shape[1]))), (spread**2 / total)[:num]
    )


def token_features_figure(
    tokens: np.ndarray,
    rows: int,
    columns: int,
    pictures: np.ndarray,
    labels: Sequence[str],
    where: str,
) -> Figure:
    """Draw the first three components of tokens (B, rows * columns, D) as colours over their
    places, and mean tokens.

    `pictures` (B, height, width[, 3]) are what the network sees; `labels` (B) or none colour the
    mean tokens.
    """
    num = min(NUM_PICTURES, len(tokens))
    found = principal_components(tokens.reshape(-1, tokens.shape[-1]))
    height, width = pictures.shape[1:3]
    shown = found.scores[:, :3]
    low = np.quantile(shown, 0.01, axis=0)
    high = np.quantile(shown, 0.99, axis=0)
    colours = ((shown - low) / np.maximum(high - low, 1e-12)).clip(0, 1)
    maps = colours.reshape(len(tokens), rows, columns, 3)[:num]
    maps = maps.repeat(height // rows, axis=1).repeat(width // columns, axis=2)
    if pictures.ndim == 4:
        seen = pictures[:num]
    else:
        seen = pictures[:num, ..., None].repeat(3, axis=3)
    x, y = principal_components(tokens.mean(axis=1), 2).scores.T
    names = np.array(labels or [""] * len(tokens))
    groups = [
        PointGroup(x[names == name], y[names == name], str(name)) for name in np.unique(names)
    ]
    if labels:
        title = "Mean token of each image, by class"
    else:
        title = "Mean token of each image"
    grid_title = (
        "What the network sees, and its tokens' first three components as red, green and blue"
    )
    panels: list[Panel] = [
        ImageGrid(np.concatenate((seen, maps)), columns=num, title=grid_title),
        Points(groups, title, "first component", "second component"),
        shares_bars(found.shares),
    ]
    return Figure(
        panels, title=f"Principal components of the tokens {where}", columns=1 if num > 4 else 2
    )


def shares_bars(shares: np.ndarray) -> Bars:
    """Draw each component's share of the variance."""
    numbers = [str(number + 1) for number in range(len(shares))]
    texts = [f"{share:.0%}" for share in shares]
    return Bars(
        numbers, shares, "Variance by component", "share of the variance", "component", texts
    )


def vectors_figure(
    vectors: np.ndarray, texts: Sequence[str], what: str, num_shown: int = 200
) -> Figure:
    """Draw the first two components of vectors (num, D) with the text of each, and the variance by
    component.
    """
    found = principal_components(vectors)
    shown = [text or "·" for text in texts[:num_shown]]
    group = PointGroup(found.scores[:num_shown, 0], found.scores[:num_shown, 1], texts=shown)
    title = f"The first {len(shown)} of {len(vectors)}"
    points = Points([group], title, "first component", "second component")
    return Figure([points, shares_bars(found.shares)], title=f"Principal components of {what}")


def modulation_figure(
    modulations: Iterable[Modulation | GatedModulation],
    t: Tensor,
    x_label: str,
    branch: str = "attention",
) -> Figure:
    """Draw the middle block's modulation (times, dimensions) and its mean over evenly rising t, and
    how much each block's moves."""
    times = to_numpy(t)
    symbol = x_label.split()[-1]
    blocks = [
        {name: to_numpy(each.float()) for name, each in modulation._asdict().items()}
        for modulation in modulations
    ]
    middle = blocks[len(blocks) // 2]
    scale = middle["scale"]
    numbers = np.arange(1, len(blocks) + 1)
    width = scale.shape[1]
    extent = (float(times[0]), float(times[-1]), float(width), 0.0)
    panels: list[Panel] = [
        Heatmap(
            values.T, f"{name}({symbol})", x_label, "dimension", extent, diverging=True, unit=name
        )
        for name, values in middle.items()
    ]
    dimensions = range(0, width, max(1, width // NUM_DIMENSIONS))[:NUM_DIMENSIONS]
    few = [Curve(times, scale[:, dimension], f"dimension {dimension}") for dimension in dimensions]
    means = [
        Curve(times, each.mean(axis=1), name, each.std(axis=1)) for name, each in middle.items()
    ]
    # standard deviation over time, averaged over dimensions: 0 means that a block ignores time
    moves = [
        Curve(numbers, np.array([block[name].std(axis=0).mean() for block in blocks]), name)
        for name in middle
    ]
    panels += [
        Lines(few, "Scale of a few dimensions", x_label, "scale"),
        Lines(means, "Mean over dimensions, with their standard deviation", x_label, "value"),
        Lines(
            moves,
            f"How much each block's modulation moves with {symbol}",
            "block",
            f"standard deviation over {symbol}",
        ),
    ]
    title = (
        f"adaLN before {branch} in block {len(blocks) // 2 + 1} of {len(blocks)}, over {x_label}"
    )
    return Figure(panels, title=title, columns=len(middle))


def module_outputs(modules: Sequence[nn.Module], forward: Callable[[], object]) -> list[Tensor]:
    """Run `forward`, in which each module gives a tensor, and return the (last) output of each, in
    the modules' order."""
    kept: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, _args: object, output: Tensor) -> None:
        kept[module] = output.detach()

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(keep))
        forward()
    return [kept[module] for module in modules]


def pass_figure(
    steps: Sequence[Step], conditions: Sequence[Step], conditioned: Sequence[int], title: str
) -> Figure:
    """Draw `steps` from top to bottom, `conditions` beside them, and arrows from the last one to
    the steps `conditioned`."""
    last = len(steps) - 1
    boxes = [
        Box(text, detail, 0, row, "data" if row in (0, last) else "layer")
        for row, (text, detail) in enumerate(steps)
    ]
    boxes += [
        Box(text, detail, 1, row, "condition") for row, (text, detail) in enumerate(conditions)
    ]
    arrows = [Arrow(row, row + 1) for row in range(len(boxes) - 1) if row != last]
    arrows += [Arrow(len(boxes) - 1, step) for step in conditioned]
    return Figure([Diagram(boxes, arrows)], title=title, columns=1)


def cut_patches(picture: np.ndarray, size: int) -> np.ndarray:
    """Cut a picture into patches, row by row: (height, width[, 3]) -> (num, size, size[, 3])."""
    rows = picture.shape[0] // size
    columns = picture.shape[1] // size
    grid = picture.reshape(rows, size, columns, size, *picture.shape[2:])
    return grid.swapaxes(1, 2).reshape(rows * columns, size, size, *picture.shape[2:])


def with_patch_lines(picture: np.ndarray, size: int) -> np.ndarray:
    """Enlarge a picture and draw coloured lines between its patches: RGB."""
    colour = picture if picture.ndim == 3 else picture[..., None].repeat(3, axis=2)
    large = colour.repeat(ENLARGEMENT, axis=0).repeat(ENLARGEMENT, axis=1)
    step = size * ENLARGEMENT
    large = np.insert(large, range(step, large.shape[0], step), LINE_COLOUR, axis=0)
    return np.insert(large, range(step, large.shape[1], step), np.array(LINE_COLOUR), axis=1)
