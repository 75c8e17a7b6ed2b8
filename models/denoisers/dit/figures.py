"""Figures of DiT: those of a trained network by kind, and those that need no weights."""

from __future__ import annotations

from collections.abc import Mapping

from denoisers.dit.adaln_figure import draw_adaln
from denoisers.dit.attention_figure import draw_attention
from denoisers.dit.patch_figures import draw_patches, draw_positions, patches_figure, positions_figure, ring
from denoisers.dit.spec import DiTSpec
from denoisers.figure_makers import FigureMaker
from denoisers.figures import Figure
from denoisers.layers.embedding_figures import time_figure
from denoisers.processes.flow.figures import draw_samples, draw_trajectory

FIGURES: Mapping[str, FigureMaker] = {
    "samples": draw_samples,
    "trajectory": draw_trajectory,
    "patches": draw_patches,
    "positions": draw_positions,
    "attention": draw_attention,
    "adaln": draw_adaln,
}


def static_figures(spec: DiTSpec) -> Mapping[str, Figure]:
    """Draw `patches` (of a ring), `positions` and `time_embedding`: none needs weights."""
    return {
        "patches": patches_figure(ring(spec), spec),
        "positions": positions_figure(spec),
        "time_embedding": time_figure(spec.width, spec.time_scale),
    }
