"""The language model family: its specs, and the parts built from them. Imports torch only inside
its methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ditlab_models.contract import Evaluator, Family, Network, Objective, Sampler, TextCodec
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec, DLMSpec
from ditlab_models.figures import Figure


class DLMFamily(Family[DLMSpec, DLMObjectiveSpec, DLMSamplingSpec]):
    """Discrete diffusion language models."""

    name = "dlm"
    model = DLMSpec
    objective = DLMObjectiveSpec
    sampling = DLMSamplingSpec

    def build_network(self, model: DLMSpec) -> Network:
        from ditlab_models.dlm.network import DLM

        return DLM(model)

    def build_objective(
        self, objective: DLMObjectiveSpec, model: DLMSpec, text: TextCodec | None = None
    ) -> Objective:
        from ditlab_models.dlm.objective import DLMObjective

        return DLMObjective(objective, model, text)

    def build_sampler(
        self,
        sampling: DLMSamplingSpec,
        model: DLMSpec,
        objective: DLMObjectiveSpec,
        text: TextCodec | None = None,
    ) -> Sampler:
        from ditlab_models.dlm.sampling import DLMSampler

        sampling.check(model, objective)
        return DLMSampler(sampling, model, objective, text)

    def build_evaluator(
        self, objective: DLMObjectiveSpec, model: DLMSpec, text: TextCodec | None = None
    ) -> Evaluator:
        from ditlab_models.dlm.evaluation import DLMEvaluator

        return DLMEvaluator(objective, model, text)

    def example_inputs(
        self, model: DLMSpec, batch_size: int, device: str = "meta"
    ) -> tuple[Any, ...]:
        """Return zeros: x (batch, length) int64; ones: sigma (batch,)."""
        import torch

        x = torch.zeros(batch_size, model.length, dtype=torch.int64, device=device)
        return (x, torch.ones(batch_size, device=device))

    def static_figures(self, model: DLMSpec) -> Mapping[str, Figure]:
        from ditlab_models.dlm.figures import static_figures

        return static_figures(model)


FAMILY = DLMFamily()
