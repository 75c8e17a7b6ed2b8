"""Small networks and losses of every family, such that every option is there with each value
once.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ditlab_models.contract import BatchField, TextCodec
from ditlab_models.families import families
from support.models.pixelhdm_samplers import FROZEN

BATCH, SIDE = 3, 16
MODELS: dict[str, dict[str, Any]] = {
    "dit": {"image_size": SIDE, "patch_size": 4, "width": 16, "depth": 2, "num_heads": 2},
    "unet": {"image_size": SIDE, "width": 16, "time_width": 16},
    "region": {
        "num_features": 5,
        "num_regions": 12,
        "width": 16,
        "depth": 2,
        "num_heads": 2,
        "time_width": 8,
    },
    "dlm": {
        "length": 12,
        "vocabulary": 11,
        "depth": 2,
        "num_heads": 2,
        "width": 16,
        "condition_width": 8,
        "time_width": 6,
    },
    "pixelhdm": {
        **FROZEN,
        "pixel_width": 8,
        "patch_depth": 2,
        "max_resolution": 32,
        "text_length": 6,
    },
}


def variants() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (family, model, objective) such that every option is there with each value once."""
    both = {"velocity": 1.0, "direction": 0.5}
    for name in ("dit", "unet"):
        yield name, {}, {"weights": both}
        yield name, {"num_classes": 10, "label_dropout": 0.1}, {"time": {"kind": "logit_normal"}}
    yield "dit", {"adaln": "zero"}, {}
    published = {
        "adaln": "zero",
        "time_frequencies": "dit",
        "positions": "column_first",
        "gelu": "tanh",
        "final_norm": "adaln",
        "condition_ratio": 1,
        "norm_eps": 1e-6,
        "initial_weights": "dit",
    }
    yield (
        "dit",
        {**published, "variance_channels": "predicted", "num_classes": 10},
        {"process": "gaussian"},
    )
    per_block = {
        "embeddings": "per_block",
        "time_frequencies": "diffusers",
        "mlp_norm_eps": 1e-5,
        "adaln": "zero",
    }
    yield "dit", {**per_block, "variance_channels": "unused"}, {}
    fixed = {"process": "gaussian", "variance": "beta", "weights": {"bound": 0.0}}
    yield "unet", {}, fixed
    yield "dit", {"channels": 3}, {**fixed, "variance": "posterior"}
    yield "region", {}, {}
    yield "region", {"corruption": "ddpm", "positions": "sinusoidal"}, {"reduction": "entry_mean"}
    yield (
        "region",
        {"corruption": "ddpm"},
        {"reduction": "zeroed_mean", "weights": {"accessibility": 0.5}},
    )
    for blocks in (None, 4):
        yield "dlm", {"block_size": blocks}, {"score": "log"}
        yield "dlm", {"block_size": blocks}, {"score": "softmax", "noise": {"kind": "loglinear"}}
    losses = {"velocity": 1.0, "frequency": 0.5, "alignment": 0.5}
    yield "pixelhdm", {}, {"weights": losses, "alignment_width": 12, "alignment_block": 1}
    options = {"positions": "learned", "gate": "elementwise", "pixel_residual": "double"}
    yield "pixelhdm", options, {}
    yield (
        "pixelhdm",
        {"text_encoder": "learned"},
        {"prediction": "image", "weights": losses, "alignment_block": 2, "alignment_width": 12},
    )


def text_codec() -> TextCodec:
    return TextCodec(lambda text: [len(text)], lambda tokens: "", 11, 0, packing="masked")


class Parts:
    """A family's network, loss and batch: on the meta device, or drawn on another."""

    def __init__(
        self,
        name: str,
        model: Mapping[str, Any],
        objective: Mapping[str, Any],
        dtype: torch.dtype,
        device: str = "meta",
    ) -> None:
        self.family: Any = families()[name]
        self.model = self.family.model(**MODELS[name] | dict(model))
        plain = {"weights": {"alignment": 0.0}} if name == "pixelhdm" else {}
        self.objective_spec = self.family.objective_of(objective)(**plain | dict(objective))
        with torch.device(device):
            self.network = self.family.build_network(self.model).to(dtype)
            self.objective = self.family.build_objective(
                self.objective_spec, self.model, text_codec() if name == "dlm" else None
            )
        if self.objective.modules is not None:
            self.objective.modules.to(dtype)
        sizes = (
            {}
            if name != "pixelhdm"
            else {
                "image": (3, SIDE, 2 * SIDE),
                "text": (5, self.model.width),
                "image_features": (8, self.objective_spec.alignment_width),
            }
        )
        fields = [*self.model.batch_fields(), *self.objective_spec.batch_fields(self.model)]
        self.batch = {
            each.name: _field(
                each,
                (
                    BATCH,
                    *sizes.get(each.name, tuple(5 if axis < 0 else axis for axis in each.shape)),
                ),
                device,
            )
            for each in fields
        }


def _field(field: BatchField, shape: tuple[int, ...], device: str) -> Tensor:
    """A field of a batch: numbers drawn from torch's global generator, all true for masks."""
    dtype = getattr(torch, field.dtype)
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    if dtype == torch.bool:
        return torch.ones(shape, dtype=torch.bool, device=device)
    if dtype == torch.int64:
        return torch.randint(1, field.num_classes or 2, shape, device=device)
    return torch.rand(shape, device=device)
