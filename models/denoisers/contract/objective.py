"""A family's loss."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from denoisers.contract.noise import NoiseSource
from denoisers.contract.sampler import Sampler

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from denoisers.figures import Figure


class Objective(Protocol):
    """A family's loss. The sum of its components, weighted by `weights`, is trained; components are logged one by
    one."""

    weights: dict[str, float]
    """Weights by loss component; `loss` may leave out a component with weight 0."""

    modules: nn.Module | None
    """The objective's own modules: trained and checkpointed, never part of a parameter total (`training_only`)."""

    def loss(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Return the components by name, each an unweighted mean over the micro-batch (a scalar tensor)."""
        ...

    def metrics(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Return held-out metrics by name, each a mean over the batch: every loss component, whatever its weight, and
        more."""
        ...

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics to report, from the means of `metrics` over all held-out samples.

        Most are these means. A metric that is no mean over samples, such as a correlation or a perplexity, is computed
        here from means that are its parts.
        """
        ...

    def metric_names(self) -> Sequence[str]:
        """Return the names that `summary` gives, without computing them: the metrics that a sweep can rank by."""
        ...

    def figures(
        self,
        network: nn.Module,
        batch: Mapping[str, Tensor],
        sampler: Sampler,
        generator: torch.Generator,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[tuple[str, Figure]]:
        """Draw figures of a trained network: (kind, figure) for every kind, or for `kinds` alone."""
        ...

    def figure_kinds(self) -> Sequence[str]:
        """Return the kinds that `figures` gives, without drawing them."""
        ...


@runtime_checkable
class RetiringObjective(Protocol):
    """An objective one of whose components ends during training, so that the source of its fields can be freed."""

    def retired_fields(self, step: int) -> Collection[str]:
        """Return the batch fields that `loss` no longer reads from optimiser step `step` (from 0) on. Batches lack them
        from then on."""
        ...


@runtime_checkable
class PreparingObjective(Protocol):
    """An objective that takes sizes of tensors from values, on the host: of a GPU's they would be waited for."""

    prepared_from: Collection[str]
    """Batch fields that `prepare` reads."""

    def prepare(self, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Return further tensors of a training batch, from its rows and from random numbers in the host's memory.

        They are moved and join the batch of `loss`, which calls this itself where they are missing.
        """
        ...
