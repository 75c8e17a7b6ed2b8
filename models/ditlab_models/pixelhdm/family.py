"""The PixelHDM family: its specs, and the parts built from them. Imports torch only inside its
methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ditlab_models.contract import Family, Network, Objective, Sampler, TextCodec
from ditlab_models.figures import Figure
from ditlab_models.pixelhdm.spec import (
    CHANNELS,
    PixelHDMObjectiveSpec,
    PixelHDMSamplingSpec,
    PixelHDMSpec,
)


class PixelHDMFamily(Family[PixelHDMSpec, PixelHDMObjectiveSpec, PixelHDMSamplingSpec]):
    """Dual-path diffusion of images in pixel space, conditioned on text."""

    name = "pixelhdm"
    model = PixelHDMSpec
    objective = PixelHDMObjectiveSpec
    sampling = PixelHDMSamplingSpec

    def build_network(self, model: PixelHDMSpec) -> Network:
        from ditlab_models.pixelhdm.network import PixelHDM

        return PixelHDM(model)

    def build_objective(
        self, objective: PixelHDMObjectiveSpec, model: PixelHDMSpec, text: TextCodec | None = None
    ) -> Objective:
        from ditlab_models.pixelhdm.objective import PixelHDMObjective

        objective.check(model)
        return PixelHDMObjective(objective, model)

    def build_sampler(
        self,
        sampling: PixelHDMSamplingSpec,
        model: PixelHDMSpec,
        objective: PixelHDMObjectiveSpec,
        text: TextCodec | None = None,
    ) -> Sampler:
        from ditlab_models.pixelhdm.sampling import PixelHDMSampler

        sampling.check(model, objective)
        return PixelHDMSampler(sampling, model, objective)

    def example_inputs(
        self, model: PixelHDMSpec, batch_size: int, device: str = "meta"
    ) -> tuple[Any, ...]:
        """Return zeros: x (batch, 3, side, side), t (batch,); ones or zeros: the text's batch
        fields by name, a dict."""
        import torch

        side = model.example_patches * model.patch_size
        x = torch.zeros(batch_size, CHANNELS, side, side, device=device)
        t = torch.zeros(batch_size, device=device)
        if model.text_encoder == "learned":
            caption = torch.ones(batch_size, model.text_length, dtype=torch.int64, device=device)
            return (x, t, {"caption": caption})
        text = torch.zeros(batch_size, model.text_length, model.width, device=device)
        mask = torch.ones(batch_size, model.text_length, dtype=torch.bool, device=device)
        pooled = torch.zeros(batch_size, model.width, device=device)
        return (x, t, {"text": text, "text_mask": mask, "text_pooled": pooled})

    def static_figures(self, model: PixelHDMSpec) -> Mapping[str, Figure]:
        from ditlab_models.pixelhdm.figures import static_figures

        return static_figures(model)


FAMILY = PixelHDMFamily()
