"""Figure of a trained DiT's tokens: their principal components behind the last block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from denoisers.dit.network import DiT
from denoisers.figure_kinds.features import token_features_figure
from denoisers.figure_kinds.velocity_kinds import velocity_probe
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Figure
from denoisers.processes.flow.figures import to_pictures
from denoisers.processes.flow.linear_path import interpolate

NOISE = 0.25


def draw_features(inputs: FigureInputs) -> Figure:
    """Draw `features`: principal components of the tokens of held-out images, a quarter of which is noise."""
    network = inputs.network
    assert isinstance(network, DiT)
    probe = velocity_probe(inputs)
    t = probe.at(NOISE)
    x_t = interpolate(probe.image, probe.noise, t)
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _args: object, output: Tensor) -> None:
        kept.append(output)

    handle = network.transformer_blocks()[-1].register_forward_hook(keep)
    try:
        with torch.no_grad():
            probe.velocity(x_t, t)
    finally:
        handle.remove()
    rows = network.spec.num_rows
    labels = [str(value) for value in inputs.batch["label"][: len(x_t)].tolist()] if "label" in inputs.batch else []
    tokens = kept[0].detach().float().cpu().numpy()
    where = f"behind the last block, t = {NOISE:g}"
    return token_features_figure(tokens, rows, rows, to_pictures(x_t), labels, where)
