"""The U-Net's objective: the shared velocity regression, with the U-Net's own figures."""

from denoisers.figure_makers import FigureMaker
from denoisers.processes.flow.figures import draw_samples, draw_trajectory
from denoisers.processes.flow.objective import VelocityObjective
from denoisers.unet.figures import draw_time_shift
from denoisers.unet.spec import UNetObjectiveSpec, UNetSpec

FIGURES: dict[str, FigureMaker] = {
    "samples": draw_samples,
    "trajectory": draw_trajectory,
    "time_shift": draw_time_shift,
}


class UNetObjective(VelocityObjective):
    """Velocity regression with the U-Net's figures."""

    def __init__(self, spec: UNetObjectiveSpec, model: UNetSpec) -> None:
        super().__init__(spec, model, FIGURES)
