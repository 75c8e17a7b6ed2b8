"""Picture of a replayed step: its samples by loss, losses over time, gradient norms by layer."""

import math
from collections.abc import Sequence

import numpy as np

from denoisers.figures import Bars, Figure, Panel, PointGroup, Points
from ditlab.checking.replay.layers import layers_of
from ditlab.checking.replay.steps import ReplayedStep
from ditlab.data.preview import row_pictures
from ditlab.data.stores.view import View

MOST_PICTURES = 64
MOST_LAYERS = 40


def step_figure(view: View, step: ReplayedStep, texts: Sequence[str]) -> Figure | None:
    """Draw a step; None where it was not measured sample by sample."""
    if not step.samples:
        return None
    order = sorted(step.samples, key=lambda sample: -sample.loss if math.isfinite(sample.loss) else -math.inf)
    few = order[:MOST_PICTURES]
    captions = [f"{sample.loss:.3g}" + ("" if sample.time is None else f" t={sample.time:.2g}") for sample in few]
    places = np.array([sample.place for sample in few])
    panels: list[Panel] = []
    grid = row_pictures(view, step.indices[places], captions, "samples by loss, the largest first")
    if grid is not None:
        panels.append(grid)
    else:
        names = [f"{texts[sample.place]} (row {sample.row})"[-60:] for sample in few[:MOST_LAYERS]]
        losses = np.array([sample.loss for sample in few[:MOST_LAYERS]])
        panels.append(Bars(names, losses, title="samples by loss", x_label="loss"))
    timed = [sample for sample in step.samples if sample.time is not None and math.isfinite(sample.loss)]
    if timed:
        group = PointGroup(
            np.array([sample.time for sample in timed]), np.array([sample.loss for sample in timed]), "samples"
        )
        panels.append(Points([group], title="loss by time", x_label="time or noise level", y_label="loss"))
    layers = sorted(layers_of(step.norms or {}), key=lambda layer: -layer.gradient)[:MOST_LAYERS]
    if layers:
        names = [layer.layer for layer in layers]
        norms = np.array([layer.gradient for layer in layers])
        panels.append(Bars(names, norms, title="gradient norm by layer", x_label="norm before clipping"))
        ratios = np.array([layer.ratio or 0.0 for layer in layers])
        panels.append(Bars(names, ratios, title="update over weights", x_label="ratio of norms"))
    loss = "left out" if step.loss is None else f"loss {step.loss:.5g}"
    variant = " under another spec" if step.is_variant else ""
    return Figure(panels, title=f"step {step.step:,}{variant}: {loss}")
