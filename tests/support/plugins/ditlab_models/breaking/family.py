"""A family for tests: the DiT, whose objective fails at a set step in a set worker."""

from typing import Any

from ditlab_models.breaking.spec import BreakingObjectiveSpec, BreakingSpec

from ditlab_models.dit.family import DiTFamily


class BreakingFamily(DiTFamily):
    """The DiT with a fault in its loss."""

    name = "breaking"
    model = BreakingSpec
    objective = BreakingObjectiveSpec

    def build_objective(self, objective: Any, model: Any, text: Any = None) -> Any:
        from ditlab_models.breaking.objective import breaking

        return breaking(super().build_objective(objective, model, text), objective.fault)


FAMILY = BreakingFamily()
