"""PixelHDM's sampler: images of any size from noise at t = 0, or from an image, guided by texts.

For solvers, the network under a text and classifier-free guidance is a velocity. Sampled images become a grid with
captions, and files with the settings of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from denoisers.checks import check_no_label
from denoisers.contract import DEFAULT_REQUEST, Picture, RealRows, SampleRequest, Samples
from denoisers.figures import Figure, ImageGrid
from denoisers.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from denoisers.pixelhdm.text_encoder import caption_bytes
from denoisers.processes.draws import draw_seeds, seeded_normal, starting_noise, state_dtype
from denoisers.processes.flow import interpolate, point_velocity, repeat_time
from denoisers.processes.flow_figures import to_pictures
from denoisers.processes.flow_sampling import Conditions, Guidance, guided_prediction
from denoisers.processes.solvers import Solver, dpmpp_2m, dpmpp_2s, euler, heun_then_euler, ignore, midpoint

SOLVERS: dict[str, Solver] = {
    "euler": Solver(euler, order=1, evaluations=1),
    "heun": Solver(heun_then_euler, order=2, evaluations=2),
    "dpmpp_2m": Solver(dpmpp_2m, order=2, evaluations=1),
    "midpoint": Solver(midpoint, order=2, evaluations=2),
    "dpmpp_2s": Solver(dpmpp_2s, order=2, evaluations=2),
}
KEPT_CONDITIONS = ("prompt", "negative_prompt", "seed", "strength")
"""Conditions that samples keep, for people: small ones."""
MAX_MODULATIONS = 2**28
"""Most values of one pixel block's modulations in a forward pass: 1 GiB in float32. These, and the tensors computed
with them, take most memory: 42 images of 256x256 in a pass, half as many with guidance."""
NEGATIVE = "negative_"
"""Prefix of the batch fields of the negative prompt."""
TEXT_FIELDS = {"learned": ("caption",), "frozen": ("text", "text_mask", "text_pooled")}
"""Batch fields of a text, by `model.text_encoder`."""
TOKENWISE = ("caption", "text", "text_mask")
"""Batch fields with an axis of tokens, behind that of samples. Its padding is 0."""
MAX_COLUMNS = 16
"""Most columns of a grid with a row for each prompt."""


class PixelHDMSampler:
    """Sampler of images (num, 3, H, W), each from the noise of its own seed, which `Samples.conditions` hold."""

    draws_per_prompt = True
    max_batch_size: int | None = None  # `GuidedVelocity` bounds the network's batch

    def __init__(self, spec: PixelHDMSamplingSpec, model: PixelHDMSpec, objective: PixelHDMObjectiveSpec) -> None:
        self.spec = spec
        self.size = (spec.height, spec.width)
        self.takes_rows: Literal["none", "conditions", "completed"] = "none" if spec.prompts else "conditions"
        self._model = model
        self._prediction = objective.prediction
        self._texts = TextConditions(model)
        self.row_fields = self._texts.fields
        self._guidance = Guidance(
            spec.guidance, spec.guidance_schedule, spec.min_scale, spec.interval, rescale=spec.rescale
        )
        self._compiled: tuple[nn.Module, nn.Module] | None = None

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return the network's text fields of `num` samples, `size` (num, 2), and the request's other conditions.

        Prompts get equally many samples each, in order (the last ones fewer, if `num` is no multiple); they are the
        request's, else the spec's, else the captions of the rows. `negative_...` are the fields of the negative prompt;
        `seed` (num,) is included if the request has one, `start` and `strength` with an image to start from.

        Raises:
            ValueError: a label, a prompt at a place, an empty or too long text, no prompt at all; a text without the
                encoder that it needs; a size, seed, start or strength that cannot be.
        """
        check_no_label(request)
        size = request.size or self.size
        self._model.check_size(*size)
        prompts, negative = self._prompts(request), self._negative(request)
        each = -(-num // len(prompts)) if prompts else num
        if prompts:
            conditions = self._texts.of_prompts(prompts, torch.arange(num) // each, request)
        elif request.rows is not None:
            conditions = self._texts.of_rows(request.rows, num)
        else:
            raise ValueError("no prompt was given, and there are no captions to take in its place; name a prompt.")
        if negative is not None:
            conditions = self._texts.with_negative(conditions, negative, request)
        if request.seed is not None:
            conditions["seed"] = seeds_from(request.seed, torch.arange(num) % each)
        return conditions | {"size": torch.tensor([size]).expand(num, 2)} | start_image(request, size, num)

    def _prompts(self, request: SampleRequest) -> Sequence[str]:
        for prompt in request.prompts:
            if prompt.position != 0:
                raise ValueError(
                    f"prompt={prompt.text!r} was placed at token {prompt.position}, and a picture has no places for "
                    "text; leave the place out."
                )
        texts = [prompt.text for prompt in request.prompts]
        self._model.check_texts("prompt", texts)
        return texts or self.spec.prompts

    def _negative(self, request: SampleRequest) -> str | None:
        if request.negative_prompt is None:
            return None if self._guidance.is_plain else self.spec.negative_prompt
        self._model.check_texts("negative_prompt", (request.negative_prompt,))
        if self._guidance.is_plain:
            raise ValueError(
                f"negative_prompt={request.negative_prompt!r} changes nothing without guidance "
                "(sampling.guidance=1); set sampling.guidance above 1, such as 7.5."
            )
        return request.negative_prompt

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw `num` images, (num, 3, H, W) on the network's device, in the best dtype of float32, weights and `noise`.

        An image is a function of its seed and its conditions, whatever the batch and the device (up to rounding). With
        `noise` in place of seeds, samples have no `seed`. Frames: noise (with `start`, the noised image), one a step,
        one of the final projection. Raises ValueError for noise of another shape, and beside seeds.
        """
        spec = self.spec
        device = next(network.parameters()).device
        conditions = {name: values.to(device) for name, values in conditions.items()}
        seeds = conditions["seed"].tolist() if "seed" in conditions else draw_seeds(num, generator)
        x = seeded_normal(seeds, (3, *conditions["size"][0].tolist())).to(device, state_dtype(network))
        if noise is not None:
            if "seed" in conditions:
                raise ValueError(f"noise was given beside seed={seeds[0]}, which draws noise; leave one of them out.")
            x = starting_noise(noise, x.shape, x)
        strength = float(conditions["strength"][0]) if "start" in conditions else 1.0
        times = self.times(strength)
        if "start" in conditions:
            x = interpolate(conditions["start"], x, times[:1].to(x), noise_at=0)
        frames = [x]
        record = frames.append if trajectory else ignore
        velocity = GuidedVelocity(
            self._forward(network),
            next(network.parameters()).dtype,
            self._prediction,
            self._model.pixel_width,
            self._guidance,
            conditions,
        )
        x = SOLVERS[spec.solver].integrate(velocity, x, times, record)
        if spec.final_projection:
            x = x + (1 - times[-1]) * velocity(x, times[-1])
            record(x)
        kept = {name: conditions[name] for name in KEPT_CONDITIONS if name in conditions}
        if noise is None:
            kept["seed"] = torch.tensor(seeds)
        return Samples(x, kept, torch.stack(frames) if trajectory else None)

    def times(self, strength: float = 1.0) -> Tensor:
        """Times t_i = eps + (i / N) (1 - 2 eps), or the last N strength steps of it, float64 on the CPU."""
        eps = self.spec.eps
        steps = max(1, round(strength * self.spec.steps))
        return torch.linspace(eps + (1 - strength) * (1 - 2 * eps), 1 - eps, steps + 1, dtype=torch.float64)

    def _forward(self, network: nn.Module) -> nn.Module:
        """Return the network, compiled once if the spec says so. The network itself is unchanged."""
        if not self.spec.compile:
            return network
        if self._compiled is None or self._compiled[0] is not network:
            compiled: nn.Module = torch.compile(network)  # type: ignore[assignment]
            self._compiled = (network, compiled)
        return self._compiled[1]

    def show(self, samples: Samples) -> Figure:
        """Draw a grid of images with their prompts; several prompts with several images get a row each."""
        return sample_grid(samples)

    def pictures(self, samples: Samples) -> Sequence[Picture]:
        """Return every image with its settings."""
        return picture_files(samples, self.spec)


@dataclass(frozen=True)
class GuidedVelocity:
    """dz/dt at z_t = t x + (1 - t) eps, in z_t's dtype whatever the network's."""

    network: Callable[..., Tensor]
    """PixelHDM, compiled or not."""
    dtype: torch.dtype
    """Dtype of the network's weights."""
    prediction: Literal["velocity", "image"]
    """The network's output."""
    pixel_width: int
    guidance: Guidance
    conditions: Conditions
    """Text fields of all samples. Guidance leads away from those that begin with `negative_`, if there are any, else
    from the null condition."""

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """Compute the velocity of (B, 3, H, W) at the scalar time t, conditional and negative ones in one pass."""
        conditional, negative = self._conditional_and_negative()
        scale = self.guidance.scale_at(float(t))
        return guided_prediction(
            self._predict, x, repeat_time(t, x), conditional, negative, scale, self.guidance.rescale
        )

    def _conditional_and_negative(self) -> tuple[Conditions, Conditions]:
        """Return the text's conditions, and those that guidance leads away from."""
        names = [name for fields in TEXT_FIELDS.values() for name in fields if name in self.conditions]
        text = {name: self.conditions[name] for name in names}
        if NEGATIVE + names[0] in self.conditions:
            return text, {name: self.conditions[NEGATIVE + name] for name in names}
        first = text[names[0]]
        keep = torch.ones(len(first), dtype=torch.bool, device=first.device)
        return text | {"keep": keep}, text | {"keep": ~keep}

    def _predict(self, x: Tensor, t: Tensor, conditions: Conditions) -> Tensor:
        limit = max(1, MAX_MODULATIONS // (6 * self.pixel_width * x.shape[2] * x.shape[3]))
        parts = []
        for first in range(0, len(x), limit):
            part = slice(first, first + limit)
            condition = {name: values[part] for name, values in conditions.items()}
            keep = condition.pop("keep", None)
            parts.append(self.network(x[part].to(self.dtype), t[part], condition, keep).to(x.dtype))
        output = torch.cat(parts)
        if self.prediction == "velocity":
            return output
        return point_velocity(x, t.view(-1, 1, 1, 1), output, noise_at=0)


class TextConditions:
    """Conversion of texts to a model's conditions."""

    def __init__(self, model: PixelHDMSpec) -> None:
        self._model = model
        self.fields = TEXT_FIELDS[model.text_encoder]

    def encode(self, texts: Sequence[str], request: SampleRequest) -> dict[str, Tensor]:
        """Return the batch fields of texts, (number of texts, ...) each.

        Raises ValueError if a frozen encoder is needed and the request has none.
        """
        if self._model.text_encoder == "learned":
            return {"caption": caption_bytes(texts, self._model.text_length)}
        if request.encode is None:
            raise ValueError(
                f"prompt={texts[0]!r} needs the frozen text encoder that the model was trained with, and none is "
                "named; set encoders.text to its folder or name."
            )
        encoded = request.encode(texts)
        return {name: encoded[name] for name in self.fields}

    def of_prompts(self, prompts: Sequence[str], which: Tensor, request: SampleRequest) -> dict[str, Tensor]:
        """Return the texts of samples: sample i shows prompt `which[i]`; `which` (num,)."""
        conditions = {name: values[which] for name, values in self.encode(prompts, request).items()}
        return conditions | {"prompt": to_bytes(prompts)[which]}

    def of_rows(self, rows: RealRows, num: int) -> dict[str, Tensor]:
        """Return the texts of the first `num` rows."""
        conditions = {name: rows.batch[name][:num] for name in self.fields}
        if "caption" in conditions:
            return conditions | {"prompt": conditions["caption"]}
        captions = rows.columns.get("caption")
        return conditions if captions is None else conditions | {"prompt": torch.from_numpy(captions[:num]).long()}

    def with_negative(self, conditions: Mapping[str, Tensor], text: str, request: SampleRequest) -> dict[str, Tensor]:
        """Add the batch fields of a negative prompt to conditions, both padded to the same number of tokens."""
        both = dict(conditions)
        for name, negative in self.encode([text], request).items():
            values = conditions[name]
            if name in TOKENWISE:
                length = max(values.shape[1], negative.shape[1])
                values, negative = _padded(values, length), _padded(negative, length)
            both |= {name: values, NEGATIVE + name: negative.to(values).expand_as(values)}
        return both | {"negative_prompt": to_bytes([text]).expand(len(values), -1)}


def to_bytes(texts: Sequence[str]) -> Tensor:
    """Encode whole texts as UTF-8: (number of texts, longest) int64, 0 behind the end."""
    return caption_bytes(texts, max(len(text.encode()) for text in texts))


def to_texts(tokens: Tensor) -> list[str]:
    """Decode the bytes of `to_bytes`."""
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in tokens.tolist()]


def seeds_from(first: int, index: Tensor) -> Tensor:
    """Seeds (num,) int64 of samples: `first` plus each one's index among its prompt's samples."""
    if not 0 <= first < 2**62:
        raise ValueError(f"seed={first} must lie between 0 and 2^62 - 1; name another.")
    return first + index


def start_image(request: SampleRequest, size: tuple[int, int], num: int) -> dict[str, Tensor]:
    """Return `start` (num, 3, height, width) and `strength` (num,) float64; {} if samples start from noise."""
    if not 0 < request.strength <= 1:
        raise ValueError(
            f"strength={request.strength:g} must lie above 0 and be at most 1: the share of the way from noise that "
            "is done again; name another, such as 0.6."
        )
    if request.start is None:
        if request.strength != 1:
            raise ValueError(f"strength={request.strength:g} needs an image to start from; name one, or leave it out.")
        return {}
    if tuple(request.start.shape) != (3, *size):
        raise ValueError(
            f"start has the shape {tuple(request.start.shape)}, and samples of size {size[0]}x{size[1]} start from "
            f"{(3, *size)}; resize the image, or name its size."
        )
    strength = torch.full((num,), request.strength, dtype=torch.float64)
    return {"start": request.start.expand(num, -1, -1, -1), "strength": strength}


def _padded(values: Tensor, length: int) -> Tensor:
    """Pad (num, tokens, ...) with zeros to `length` tokens."""
    return functional.pad(values, (*(0, 0) * (values.ndim - 2), 0, length - values.shape[1]))


def sample_grid(samples: Samples) -> Figure:
    """Draw the samples with their prompts; several prompts with several images get a row each."""
    prompts = _texts(samples, "prompt")
    runs = [len(list(same)) for _, same in groupby(prompts)]
    in_rows = len(runs) > 1 and 1 < runs[0] <= MAX_COLUMNS
    return Figure([ImageGrid(to_pictures(samples.values), prompts, runs[0] if in_rows else 8)], columns=1)


def picture_files(samples: Samples, spec: PixelHDMSamplingSpec) -> list[Picture]:
    """Make a picture of each sample, with the settings under which its seed reproduces it."""
    pixels = np.rint(255 * to_pictures(samples.values)).astype(np.uint8)
    height, width = pixels.shape[1:3]
    common = {
        "size": f"{height}x{width}",
        "solver": spec.solver,
        "steps": str(spec.steps),
        "guidance": f"{spec.guidance:g}",
        "guidance_schedule": spec.guidance_schedule,
        "min_scale": f"{spec.min_scale:g}",
        "interval": f"{spec.interval[0]:g} {spec.interval[1]:g}",
        "rescale": f"{spec.rescale:g}",
        "eps": f"{spec.eps:g}",
        "final_projection": str(spec.final_projection).lower(),
    }
    own: dict[str, Sequence[str]] = {name: _texts(samples, name) for name in ("prompt", "negative_prompt")}
    own |= {
        name: [f"{v}" for v in samples.conditions[name].tolist()]
        for name in ("seed", "strength")
        if name in samples.conditions
    }
    return [
        Picture(image, {name: values[i] for name, values in own.items() if values} | common)
        for i, image in enumerate(pixels)
    ]


def _texts(samples: Samples, name: str) -> list[str]:
    """One text for each sample, or none."""
    return to_texts(samples.conditions[name]) if name in samples.conditions else []
