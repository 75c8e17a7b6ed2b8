"""The DiT family: its specs, and the parts built from them. Imports torch only inside its methods."""

from __future__ import annotations

from collections.abc import Mapping

from denoisers.contract import Network, Objective, TextCodec
from denoisers.dit.spec import DiTObjectiveSpec, DiTSamplingSpec, DiTSpec
from denoisers.figures import Figure
from denoisers.processes.flow_family import FlowFamily


class DiTFamily(FlowFamily[DiTSpec, DiTObjectiveSpec, DiTSamplingSpec]):
    """Diffusion transformers on images, trained by flow matching."""

    name = "dit"
    model = DiTSpec
    objective = DiTObjectiveSpec
    sampling = DiTSamplingSpec

    def build_network(self, model: DiTSpec) -> Network:
        from denoisers.dit.network import DiT

        return DiT(model)

    def build_objective(self, objective: DiTObjectiveSpec, model: DiTSpec, text: TextCodec | None = None) -> Objective:
        from denoisers.dit.figures import figure_makers
        from denoisers.processes.flow import VelocityObjective

        return VelocityObjective(objective, model, figure_makers(objective))

    def static_figures(self, model: DiTSpec) -> Mapping[str, Figure]:
        from denoisers.dit.figures import static_figures

        return static_figures(model)


FAMILY = DiTFamily()
