"""The region family: its specs, and the parts built from them. Imports torch only inside its
methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ditlab_models.contract import Evaluator, Family, Network, Objective, Sampler, TextCodec
from ditlab_models.figures import Figure
from ditlab_models.region.spec import RegionObjectiveSpec, RegionSamplingSpec, RegionSpec


class RegionFamily(Family[RegionSpec, RegionObjectiveSpec, RegionSamplingSpec]):
    """Transformers over the regions of genomic windows."""

    name = "region"
    model = RegionSpec
    objective = RegionObjectiveSpec
    sampling = RegionSamplingSpec

    def build_network(self, model: RegionSpec) -> Network:
        from ditlab_models.region.network import RegionNetwork

        return RegionNetwork(model)

    def build_objective(
        self, objective: RegionObjectiveSpec, model: RegionSpec, text: TextCodec | None = None
    ) -> Objective:
        """Raises ValueError under `corruption: ddpm` for noise that leaves too much signal at its
        last timestep.
        """
        from ditlab_models.region.objective import RegionObjective

        if model.corruption == "ddpm":
            objective.noise.check_ends_in_noise()
        return RegionObjective(objective, model)

    def build_sampler(
        self,
        sampling: RegionSamplingSpec,
        model: RegionSpec,
        objective: RegionObjectiveSpec,
        text: TextCodec | None = None,
    ) -> Sampler:
        from ditlab_models.region.sampling import RegionSampler

        sampling.check(model, objective)
        return RegionSampler(sampling, objective.noise, model)

    def build_evaluator(
        self, objective: RegionObjectiveSpec, model: RegionSpec, text: TextCodec | None = None
    ) -> Evaluator:
        from ditlab_models.region.evaluation import RegionEvaluator

        return RegionEvaluator(objective, model)

    def example_inputs(
        self, model: RegionSpec, batch_size: int, device: str = "meta"
    ) -> tuple[Any, ...]:
        """Return zeros: x (batch, regions, features), mask (batch, regions) bool, t (batch,)
        int64.
        """
        import torch

        x = torch.zeros(batch_size, model.num_regions, model.num_features, device=device)
        mask = torch.zeros(batch_size, model.num_regions, dtype=torch.bool, device=device)
        return (x, mask, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def static_figures(self, model: RegionSpec) -> Mapping[str, Figure]:
        from ditlab_models.region.figures import static_figures

        return static_figures(model)


FAMILY = RegionFamily()
