"""Figures of a trained network, by kind: their inputs, and an objective's part that draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ditlab_models.contract import Batch, Conditions, Sampler, Samples
from ditlab_models.figures import Figure

NetworkT = TypeVar("NetworkT", bound=nn.Module)


@dataclass(frozen=True)
class FigureInputs:
    """Inputs of a figure of a trained network."""

    network: nn.Module
    batch: Batch
    sampler: Sampler
    generator: torch.Generator

    def trained(self, kind: type[NetworkT]) -> NetworkT:
        """Return the network with its own type."""
        assert isinstance(self.network, kind)
        return self.network

    def samples(self, conditions: Conditions, num: int, trajectory: bool = False) -> Samples:
        """Draw samples by the network and its sampler."""
        return self.sampler.sample(self.network, conditions, num, self.generator, trajectory)

    def noise_like(self, values: Tensor) -> Tensor:
        """Draw standard normal numbers in the shape, type and place of `values`."""
        return torch.randn(values.shape, generator=self.generator, device=self.generator.device).to(
            values
        )


FigureMaker = Callable[[FigureInputs], Figure]
FigureMakers = Mapping[str, FigureMaker]
"""Makers of figures by kind."""


class FigureDrawer:
    """Base of an objective with figures of a trained network: `Objective.figures` from one maker
    for each kind.
    """

    weights: dict[str, float]
    """Weights by loss component."""
    modules: nn.Module | None = None
    """The objective's own modules; None: there are none."""
    figure_makers: FigureMakers

    @property
    def active(self) -> list[str]:
        """Names of the components with a weight above 0."""
        return [name for name, weight in self.weights.items() if weight > 0]

    def figures(
        self,
        network: nn.Module,
        batch: Batch,
        sampler: Sampler,
        generator: torch.Generator,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[tuple[str, Figure]]:
        """Draw every kind, or `kinds`, each from the generator's state at the call, whichever
        others are drawn.
        """
        inputs = FigureInputs(network, batch, sampler, generator)
        state = generator.get_state()
        if kinds is None:
            kinds = self.figure_kinds()
        for kind in kinds:
            generator.set_state(state)
            with torch.no_grad():
                figure = self.figure_makers[kind](inputs)
            yield kind, figure

    def figure_kinds(self) -> Sequence[str]:
        """Return the kinds that `figures` gives, without drawing them."""
        return tuple(self.figure_makers)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the means of `metrics` as they are, where an objective reports nothing else."""
        return dict(means)
