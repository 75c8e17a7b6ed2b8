"""The language model family: its specs, and the parts built from them. Imports torch only inside its methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from denoisers.contract import Evaluator, Family, Network, Objective, Sampler, TextCodec
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec, DLMSpec
from denoisers.figures import Figure


class DLMFamily(Family[DLMSpec, DLMObjectiveSpec, DLMSamplingSpec]):
    """Discrete diffusion language models."""

    name = "dlm"
    model = DLMSpec
    objective = DLMObjectiveSpec
    sampling = DLMSamplingSpec

    def build_network(self, model: DLMSpec) -> Network:
        from denoisers.dlm.network import DLM

        return DLM(model)

    def build_objective(self, objective: DLMObjectiveSpec, model: DLMSpec, text: TextCodec | None = None) -> Objective:
        from denoisers.dlm.objective import DLMObjective

        return DLMObjective(objective, model, text)

    def build_sampler(
        self, sampling: DLMSamplingSpec, model: DLMSpec, objective: DLMObjectiveSpec, text: TextCodec | None = None
    ) -> Sampler:
        from denoisers.dlm.sampling import DLMSampler

        sampling.check(model, objective)
        return DLMSampler(sampling, model, objective, text)

    def build_evaluator(self, objective: DLMObjectiveSpec, model: DLMSpec, text: TextCodec | None = None) -> Evaluator:
        from denoisers.dlm.evaluation import DLMEvaluator

        return DLMEvaluator(objective, model, text)

    def example_inputs(self, model: DLMSpec, batch_size: int, device: str = "meta") -> tuple[Any, ...]:
        """Return zeros: x (batch, length) int64; ones: sigma (batch,)."""
        import torch

        x = torch.zeros(batch_size, model.length, dtype=torch.int64, device=device)
        return (x, torch.ones(batch_size, device=device))

    def static_figures(self, model: DLMSpec) -> Mapping[str, Figure]:
        from denoisers.dlm.figures import static_figures

        return static_figures(model)


FAMILY = DLMFamily()
