"""What pictures of a trained network are drawn from, and drawing some or all kinds of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from denoisers.contract import Sampler
from denoisers.figures import Figure


@dataclass(frozen=True)
class FigureInputs:
    """What a picture of a trained network is drawn from."""

    network: nn.Module
    batch: Mapping[str, Tensor]
    sampler: Sampler
    generator: torch.Generator


FigureMaker = Callable[[FigureInputs], Figure]


def draw_figures(
    makers: Mapping[str, FigureMaker], inputs: FigureInputs, kinds: Sequence[str] | None = None
) -> Iterator[tuple[str, Figure]]:
    """Every kind, or `kinds`, from the generator's state at the call: none depends on which others are drawn."""
    state = inputs.generator.get_state()
    for kind in makers if kinds is None else kinds:
        inputs.generator.set_state(state)
        with torch.no_grad():
            figure = makers[kind](inputs)
        yield kind, figure


class FigureDrawer:
    """Base of an objective that has pictures of a trained network: what `Objective` asks for, from makers by kind."""

    figure_makers: Mapping[str, FigureMaker]

    def figures(
        self,
        network: nn.Module,
        batch: Mapping[str, Tensor],
        sampler: Sampler,
        generator: torch.Generator,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[tuple[str, Figure]]:
        return draw_figures(self.figure_makers, FigureInputs(network, batch, sampler, generator), kinds)

    def figure_kinds(self) -> Sequence[str]:
        return tuple(self.figure_makers)
