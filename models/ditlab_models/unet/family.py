"""The U-Net family: its specs, and the parts built from them. Imports torch only inside its
methods.
"""

from __future__ import annotations

from collections.abc import Mapping

from ditlab_models.contract import Network, Objective, TextCodec
from ditlab_models.figures import Figure
from ditlab_models.processes.flow_family import FlowFamily
from ditlab_models.processes.specs import GaussianSamplingSpec, GaussianSpec
from ditlab_models.unet.spec import UNetObjectiveSpec, UNetSamplingSpec, UNetSpec


class UNetFamily(
    FlowFamily[UNetSpec, UNetObjectiveSpec | GaussianSpec, UNetSamplingSpec | GaussianSamplingSpec]
):
    """Convolutional U-Nets on images, trained by flow matching or under the Gaussian process."""

    name = "unet"
    model = UNetSpec
    objective = UNetObjectiveSpec
    sampling = UNetSamplingSpec
    processes = ((UNetObjectiveSpec, UNetSamplingSpec), (GaussianSpec, GaussianSamplingSpec))

    def build_network(self, model: UNetSpec) -> Network:
        from ditlab_models.unet.network import UNet

        return UNet(model)

    def build_objective(
        self,
        objective: UNetObjectiveSpec | GaussianSpec,
        model: UNetSpec,
        text: TextCodec | None = None,
    ) -> Objective:
        from ditlab_models.processes.flow import VelocityObjective
        from ditlab_models.processes.noise_prediction import NoiseObjective
        from ditlab_models.unet.figures import figure_makers

        objective.check(model)
        makers = figure_makers(objective)
        if isinstance(objective, GaussianSpec):
            return NoiseObjective(objective, model, makers)
        return VelocityObjective(objective, model, makers)

    def static_figures(self, model: UNetSpec) -> Mapping[str, Figure]:
        from ditlab_models.unet.figures import static_figures

        return static_figures(model)


FAMILY = UNetFamily()
