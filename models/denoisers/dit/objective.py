"""DiT's objective: the shared velocity regression, with DiT's own figures."""

from denoisers.dit.figures import figure_makers
from denoisers.dit.spec import DiTObjectiveSpec, DiTSpec
from denoisers.processes.flow import VelocityObjective


class DiTObjective(VelocityObjective):
    """Velocity regression with DiT's figures."""

    def __init__(self, spec: DiTObjectiveSpec, model: DiTSpec) -> None:
        super().__init__(spec, model, figure_makers(spec))
