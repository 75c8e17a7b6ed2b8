"""PixelHDM samplers of small models, and stand-ins for a text encoder and for a network."""

import torch
from torch import nn

from ditlab_models.contract import Prompt, SampleRequest
from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from ditlab_models.processes.flow import point_velocity
from support.models.draws import seeded

LEARNED = {
    "width": 32,
    "pixel_width": 4,
    "patch_size": 8,
    "patch_depth": 1,
    "pixel_depth": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "bottleneck_width": 8,
    "time_width": 8,
    "max_resolution": 64,
    "mrope_widths": (4, 6, 6),
    "text_encoder": "learned",
    "text_length": 24,
    "text_depth": 1,
}
FROZEN = {**LEARNED, "text_encoder": "frozen"}
FEW = {"steps": 4, "height": 16, "width": 24, "guidance": 3.0}


def sampler_of(model=LEARNED, prediction="velocity", **settings):
    spec = PixelHDMSpec(**model)
    weights = {"velocity": 1.0, "frequency": 0.0, "alignment": 0.0}
    objective = PixelHDMObjectiveSpec(weights=weights, prediction=prediction)
    return FAMILY.build_sampler(PixelHDMSamplingSpec(**{**FEW, **settings}), spec, objective)


def ask(*texts: str, **conditions) -> SampleRequest:
    """A request for these descriptions."""
    return SampleRequest(prompts=[Prompt(text) for text in texts], **conditions)


def encode(texts):
    """A stand-in for a frozen encoder: the features of a text are its characters' codes, one token
    a character.
    """
    length = max(map(len, texts))
    text, mask = (
        torch.zeros(len(texts), length, 32),
        torch.zeros(len(texts), length, dtype=torch.bool),
    )
    for i, one in enumerate(texts):
        text[i, : len(one)] = torch.tensor([ord(letter) / 100 for letter in one])[:, None]
        mask[i, : len(one)] = True
    return {"text": text, "text_mask": mask, "text_pooled": text.mean(1)}


class Towards(nn.Module):
    """The velocity to one grey value, which the caption's bytes give: their number / 100, and 0
    without text.
    """

    def __init__(self, answer: str = "velocity") -> None:
        super().__init__()
        self.answer, self.weight = answer, nn.Parameter(torch.zeros(()))
        self.times: list[float] = []
        self.sizes: list[int] = []

    def forward(self, x, t, condition, keep=None):
        self.times.append(float(t[0]))
        self.sizes.append(len(x))
        present = condition["caption"] != 0 if "caption" in condition else condition["text_mask"]
        number = present.sum(1) if keep is None else torch.where(keep, present.sum(1), 0)
        grey = (number / 100).view(-1, 1, 1, 1).expand_as(x)
        return (
            grey
            if self.answer == "image"
            else point_velocity(x, t.view(-1, 1, 1, 1), grey, noise_at=0)
        )


def draw(sampler, network, num, request, **kwargs):
    return sampler.sample(network, sampler.conditions(num, request), num, seeded(), **kwargs)
