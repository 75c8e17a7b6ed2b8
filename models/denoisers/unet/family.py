"""The U-Net family: its specs, and the parts built from them. Imports torch only inside its methods."""

from __future__ import annotations

from collections.abc import Mapping

from denoisers.contract import Network, Objective, TextCodec
from denoisers.figures import Figure
from denoisers.processes.flow_family import FlowFamily
from denoisers.unet.spec import UNetObjectiveSpec, UNetSamplingSpec, UNetSpec


class UNetFamily(FlowFamily[UNetSpec, UNetObjectiveSpec, UNetSamplingSpec]):
    """Convolutional U-Nets on images, trained by flow matching."""

    name = "unet"
    model = UNetSpec
    objective = UNetObjectiveSpec
    sampling = UNetSamplingSpec

    def build_network(self, model: UNetSpec) -> Network:
        from denoisers.unet.network import UNet

        return UNet(model)

    def build_objective(
        self, objective: UNetObjectiveSpec, model: UNetSpec, text: TextCodec | None = None
    ) -> Objective:
        from denoisers.processes.flow import VelocityObjective
        from denoisers.unet.figures import figure_makers

        return VelocityObjective(objective, model, figure_makers(objective))

    def static_figures(self, model: UNetSpec) -> Mapping[str, Figure]:
        from denoisers.unet.figures import static_figures

        return static_figures(model)


FAMILY = UNetFamily()
