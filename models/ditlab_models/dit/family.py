"""The DiT family: its specs, and the parts built from them. Imports torch only inside its
methods.
"""

from __future__ import annotations

from collections.abc import Mapping

from ditlab_models.contract import Network, Objective, TextCodec
from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSamplingSpec, DiTSpec
from ditlab_models.figures import Figure
from ditlab_models.processes.flow_family import FlowFamily
from ditlab_models.processes.specs import GaussianSamplingSpec, GaussianSpec


class DiTFamily(
    FlowFamily[DiTSpec, DiTObjectiveSpec | GaussianSpec, DiTSamplingSpec | GaussianSamplingSpec]
):
    """Diffusion transformers on images, trained by flow matching or under the Gaussian process."""

    name = "dit"
    model = DiTSpec
    objective = DiTObjectiveSpec
    sampling = DiTSamplingSpec
    processes = ((DiTObjectiveSpec, DiTSamplingSpec), (GaussianSpec, GaussianSamplingSpec))

    def build_network(self, model: DiTSpec) -> Network:
        from ditlab_models.dit.network import DiT

        return DiT(model)

    def build_objective(
        self,
        objective: DiTObjectiveSpec | GaussianSpec,
        model: DiTSpec,
        text: TextCodec | None = None,
    ) -> Objective:
        from ditlab_models.dit.figures import figure_makers
        from ditlab_models.processes.flow import VelocityObjective
        from ditlab_models.processes.noise_prediction import NoiseObjective

        objective.check(model)
        makers = figure_makers(objective)
        if isinstance(objective, GaussianSpec):
            return NoiseObjective(objective, model, makers)
        return VelocityObjective(objective, model, makers)

    def static_figures(self, model: DiTSpec) -> Mapping[str, Figure]:
        from ditlab_models.dit.figures import static_figures

        return static_figures(model)


FAMILY = DiTFamily()
