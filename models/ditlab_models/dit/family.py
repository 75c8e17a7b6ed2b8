"""The DiT family: its specs, and the parts built from them. Imports torch only inside its methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ditlab_models.contract import Network
from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSamplingSpec, DiTSpec
from ditlab_models.figures import Figure
from ditlab_models.processes.flow_family import FlowFamily
from ditlab_models.processes.specs import GaussianSamplingSpec, GaussianSpec

if TYPE_CHECKING:
    from ditlab_models.figure_makers import FigureMakers


class DiTFamily(FlowFamily[DiTSpec, DiTObjectiveSpec | GaussianSpec, DiTSamplingSpec | GaussianSamplingSpec]):
    """Diffusion transformers on images, trained by flow matching or under the Gaussian process."""

    name = "dit"
    model = DiTSpec
    objective = DiTObjectiveSpec
    sampling = DiTSamplingSpec
    processes = ((DiTObjectiveSpec, DiTSamplingSpec), (GaussianSpec, GaussianSamplingSpec))

    def build_network(self, model: DiTSpec) -> Network:
        from ditlab_models.dit.network import DiT

        return DiT(model)

    def figure_makers(self, objective: DiTObjectiveSpec | GaussianSpec) -> FigureMakers:
        from ditlab_models.dit.figures import figure_makers

        return figure_makers(objective)

    def static_figures(self, model: DiTSpec) -> Mapping[str, Figure]:
        from ditlab_models.dit.figures import static_figures

        return static_figures(model)


FAMILY = DiTFamily()
