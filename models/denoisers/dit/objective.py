"""DiT's objective: the shared velocity regression, with DiT's own figures."""

from denoisers.dit.adaln_figure import draw_adaln
from denoisers.dit.attention_figure import draw_attention
from denoisers.dit.patch_figures import draw_patches, draw_positions
from denoisers.dit.spec import DiTObjectiveSpec, DiTSpec
from denoisers.figure_makers import FigureMaker
from denoisers.processes.flow.figures import draw_samples, draw_trajectory
from denoisers.processes.flow.objective import VelocityObjective

FIGURES: dict[str, FigureMaker] = {
    "samples": draw_samples,
    "trajectory": draw_trajectory,
    "patches": draw_patches,
    "positions": draw_positions,
    "attention": draw_attention,
    "adaln": draw_adaln,
}


class DiTObjective(VelocityObjective):
    """Velocity regression with DiT's figures."""

    def __init__(self, spec: DiTObjectiveSpec, model: DiTSpec) -> None:
        super().__init__(spec, model, FIGURES)
