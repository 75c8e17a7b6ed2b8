"""The U-Net family: its specs, and the parts built from them. Imports torch only inside its methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ditlab_models.contract import Network
from ditlab_models.figures import Figure
from ditlab_models.processes.flow_family import FlowFamily
from ditlab_models.processes.specs import GaussianSamplingSpec, GaussianSpec
from ditlab_models.unet.spec import UNetObjectiveSpec, UNetSamplingSpec, UNetSpec

if TYPE_CHECKING:
    from ditlab_models.figure_makers import FigureMakers


class UNetFamily(FlowFamily[UNetSpec, UNetObjectiveSpec | GaussianSpec, UNetSamplingSpec | GaussianSamplingSpec]):
    """Convolutional U-Nets on images, trained by flow matching or under the Gaussian process."""

    name = "unet"
    model = UNetSpec
    objective = UNetObjectiveSpec
    sampling = UNetSamplingSpec
    processes = ((UNetObjectiveSpec, UNetSamplingSpec), (GaussianSpec, GaussianSamplingSpec))

    def build_network(self, model: UNetSpec) -> Network:
        from ditlab_models.unet.network import UNet

        return UNet(model)

    def figure_makers(self, objective: UNetObjectiveSpec | GaussianSpec) -> FigureMakers:
        from ditlab_models.unet.figures import figure_makers

        return figure_makers(objective)

    def static_figures(self, model: UNetSpec) -> Mapping[str, Figure]:
        from ditlab_models.unet.figures import static_figures

        return static_figures(model)


FAMILY = UNetFamily()
