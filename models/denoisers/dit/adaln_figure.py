"""Figure of adaLN in a trained DiT: the modulation of its norms over t."""

from __future__ import annotations

import torch

from denoisers.dit.network import DiT
from denoisers.figure_kinds.modulation import modulation_arrays, modulation_figure
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Figure

NUM_TIMES = 101


def draw_adaln(inputs: FigureInputs) -> Figure:
    """Draw `adaln`: the middle block's modulation before attention, and the change of every block's with t.

    A conditional network is shown under its null class.
    """
    network = inputs.network
    assert isinstance(network, DiT)
    t = torch.linspace(0, 1, NUM_TIMES, device=network.head.weight.device)
    condition = network.condition(t)
    blocks = [modulation_arrays(block.modulations(condition)[0]) for block in network.transformer_blocks()]
    return modulation_figure(blocks, t.cpu().numpy(), "time t")
