"""The U-Net's objective: the shared velocity regression, with the U-Net's own figures."""

from denoisers.processes.flow import VelocityObjective
from denoisers.unet.figures import figure_makers
from denoisers.unet.spec import UNetObjectiveSpec, UNetSpec


class UNetObjective(VelocityObjective):
    """Velocity regression with the U-Net's figures."""

    def __init__(self, spec: UNetObjectiveSpec, model: UNetSpec) -> None:
        super().__init__(spec, model, figure_makers(spec))
