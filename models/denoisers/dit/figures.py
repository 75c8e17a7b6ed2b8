"""Figures of DiT: those of a trained network by kind, and those that need no weights."""

from __future__ import annotations

from collections.abc import Mapping

from denoisers.dit.adaln_figure import draw_adaln
from denoisers.dit.attention_figure import (
    draw_attention,
    draw_attention_patterns,
    draw_attention_steps,
    static_patterns,
)
from denoisers.dit.forward_pass import forward_pass_figure
from denoisers.dit.network import DiT
from denoisers.dit.patch_figures import draw_patches, draw_positions, patches_figure, positions_figure, ring
from denoisers.dit.spec import DiTObjectiveSpec, DiTSpec
from denoisers.figure_kinds.flow_schedule import flow_schedule_figure
from denoisers.figure_kinds.velocity_kinds import draw_features_of, velocity_makers
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Figure
from denoisers.layers.embedding_figures import time_figure


def draw_features(inputs: FigureInputs) -> Figure:
    """Draw `features`: principal components of the tokens of held-out images, a quarter of which is noise."""
    network = inputs.network
    assert isinstance(network, DiT)
    rows = network.spec.num_rows
    last = network.transformer_blocks()[-1]
    return draw_features_of(inputs, last, lambda tokens: (tokens, rows, rows), "behind the last block")


def figure_makers(objective: DiTObjectiveSpec) -> Mapping[str, FigureMaker]:
    """Return the makers of a trained network's figures by kind."""
    return {
        **velocity_makers(objective.time),
        "patches": draw_patches,
        "positions": draw_positions,
        "attention": draw_attention,
        "attention_steps": draw_attention_steps,
        "attention_patterns": draw_attention_patterns,
        "adaln": draw_adaln,
        "features": draw_features,
    }


def static_figures(spec: DiTSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: `patches` of a ring, tables, the noise schedule, the forward pass."""
    return {
        "patches": patches_figure(ring(spec), spec),
        "positions": positions_figure(spec),
        "attention_patterns": static_patterns(spec),
        "time_embedding": time_figure(spec.width, spec.time_scale),
        "noise_schedule": flow_schedule_figure(DiTObjectiveSpec().time),
        "forward_pass": forward_pass_figure(spec),
    }
