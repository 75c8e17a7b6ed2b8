"""Small untrained networks of every family, with all that their figures need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ditlab_models.contract import ModelSpec, TextCodec
from ditlab_models.families import families
from ditlab_models.figures import Figure
from ditlab_models.pixelhdm.text_encoder import caption_bytes
from support.models.draws import perturb, seeded
from support.models.letters import letters
from support.models.pixelhdm_samplers import FROZEN, LEARNED, encode

DIT = {"image_size": 8, "patch_size": 4, "width": 32, "depth": 2, "num_heads": 2}
CLASSES = {**DIT, "num_classes": 3, "adaln": "zero"}
UNET = {"image_size": 8, "width": 16, "time_width": 16, "num_classes": 3}
BLOCKS = {"width": 16, "depth": 2, "num_heads": 2, "time_width": 8}
REGION = {"num_features": 6, "num_regions": 10, **BLOCKS}
DLM = {"length": 12, "vocabulary": 26, **BLOCKS}
PIXELHDM = {
    **LEARNED,
    "patch_depth": 2,
    "pixel_depth": 2,
    "text_length": 12,
}
GAUSSIAN = {
    "time_frequencies": "diffusers",
    "embeddings": "per_block",
    "positions": "column_first",
    "final_norm": "adaln",
    "variance_channels": "predicted",
}
SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name: (family, model, objective, sampling)
    "dit": ("dit", {**DIT, "patch_size": 2}, {}, {"steps": 3}),
    "dit-class": ("dit", CLASSES, {"time": {"kind": "logit_normal"}}, {"steps": 2}),
    "dit-gaussian": (
        "dit",
        {**CLASSES, **GAUSSIAN, "channels": 3},
        {"process": "gaussian"},
        {"steps": 3},
    ),
    "unet-gaussian": (
        "unet",
        {**UNET, "channels": 2},
        {"process": "gaussian", "variance": "posterior", "weights": {"bound": 0.0}},
        {"steps": 2},
    ),
    "unet": ("unet", UNET, {}, {"steps": 2}),
    "region": ("region", REGION, {}, {}),
    "region-ddpm": (
        "region",
        {**REGION, "positions": "sinusoidal", "corruption": "ddpm"},
        {},
        {"solver": "ddim", "steps": 3},
    ),
    "dlm": ("dlm", DLM, {}, {"steps": 3, "solver": "analytic"}),
    "dlm-block": ("dlm", {**DLM, "block_size": 4}, {}, {"steps": 2, "block": {}}),
    "pixelhdm": (
        "pixelhdm",
        PIXELHDM,
        {"weights": {"alignment": 0.0}},
        {"steps": 2, "height": 16, "width": 24},
    ),
    "pixelhdm-frozen": (
        "pixelhdm",
        {**FROZEN, "positions": "learned", "gate": "elementwise", "text_length": 12},
        {"alignment_block": 1, "alignment_width": 5},
        {"steps": 2, "height": 16, "width": 24},
    ),
}


@dataclass(frozen=True)
class FigureNetwork:
    """A network, and its objective, sampler and batch."""

    spec: ModelSpec
    network: nn.Module
    objective: Any
    sampler: Any
    batch: Mapping[str, Tensor]

    def draw(self, *kinds: str) -> dict[str, Figure]:
        """Draw these kinds, or all."""
        generator = seeded()
        return dict(
            self.objective.figures(self.network, self.batch, self.sampler, generator, kinds or None)
        )

    def static(self) -> Mapping[str, Figure]:
        """Draw the kinds that need no weights."""
        return families()[self.spec.family].static_figures(self.spec)


def figure_network(name: str, std: float = 0.05) -> FigureNetwork:
    """Build one of `SETTINGS`, its weights moved off their initial values by `std`."""
    family_name, model, objective_changes, sampling = SETTINGS[name]
    family = families()[family_name]
    torch.manual_seed(0)
    spec = family.model.model_validate(model)
    objective_spec = family.objective_of(objective_changes).model_validate(objective_changes)
    text: TextCodec | None = None
    if family_name == "dlm":
        text = replace(letters(), bytes_per_token=1.0)
    network = perturb(family.build_network(spec), std)
    objective = family.build_objective(objective_spec, spec, text)
    sampler = family.build_sampler(
        family.sampling_of(type(objective_spec)).model_validate(sampling),
        spec,
        objective_spec,
        text,
    )
    return FigureNetwork(spec, network, objective, sampler, _batch(spec, seeded(2)))


def _batch(spec: Any, generator: torch.Generator) -> dict[str, Tensor]:
    if spec.family == "dlm":
        return {"tokens": torch.randint(0, 26, (4, spec.length), generator=generator)}
    if spec.family == "region":
        shape = (4, spec.num_regions, spec.num_features)
        present = torch.ones(shape[:2], dtype=torch.bool)
        present[0, -2:] = False
        return {"regions": torch.rand(shape, generator=generator), "present": present}
    if spec.family == "pixelhdm":
        captions = [f"digit {number}" for number in range(4)]
        image = 2 * torch.rand(4, 3, 16, 24, generator=generator) - 1
        if spec.text_encoder == "learned":
            return {"image": image, "caption": caption_bytes(captions, spec.text_length)}
        features = torch.randn(4, 6, 5, generator=generator)
        return {"image": image, "image_features": features, **encode(captions)}
    batch = {"image": 2 * torch.rand(6, *spec.image_shape, generator=generator) - 1}
    return (
        batch
        if spec.num_classes is None
        else {**batch, "label": torch.arange(6) % spec.num_classes}
    )
