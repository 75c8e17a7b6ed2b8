"""PixelHDM's sampler: images of any size from noise at t = 0, or from an image, guided by texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.checks import check_no_label
from ditlab_models.contract import (
    DEFAULT_REQUEST,
    Conditions,
    Picture,
    RealRows,
    Sampler,
    SampleRequest,
    Samples,
)
from ditlab_models.figures import Figure, ImageGrid
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from ditlab_models.pixelhdm.text_encoder import caption_bytes
from ditlab_models.pixels import to_pixels
from ditlab_models.processes.draws import draw_seeds, seeded_normal, starting_noise, state_dtype
from ditlab_models.processes.flow import Velocity, interpolate, point_velocity, repeat_time
from ditlab_models.processes.flow_figures import to_pictures
from ditlab_models.processes.flow_sampling import guided_prediction
from ditlab_models.processes.solvers import (
    dpmpp_2m,
    dpmpp_2s,
    euler,
    heun_then_euler,
    ignore,
    midpoint,
)
from ditlab_models.tensors import per_sample

SOLVERS: dict[str, Callable[..., Tensor]] = {
    "euler": euler,
    "heun": heun_then_euler,
    "dpmpp_2m": dpmpp_2m,
    "midpoint": midpoint,
    "dpmpp_2s": dpmpp_2s,
}
KEPT_CONDITIONS = ("prompt", "negative_prompt", "seed", "strength")
"""Conditions that samples keep, for people: small ones."""
MAX_MODULATIONS = 2**28
"""Most values of one pixel block's modulations in a forward pass: 1 GiB in float32. These, and the
tensors computed with them, take most memory: 42 images of 256x256 in a pass, half as many with
guidance."""
NEGATIVE = "negative_"
"""Prefix of the batch fields of the negative prompt."""
TEXT_FIELDS = {"learned": ("caption",), "frozen": ("text", "text_mask", "text_pooled")}
"""Batch fields of a text, by `model.text_encoder`."""
TOKENWISE = ("caption", "text", "text_mask")
"""Batch fields with an axis of tokens, behind that of samples. Its padding is 0."""
MAX_COLUMNS = 16
"""Most columns of a grid with a row for each prompt."""


class PixelHDMSampler(Sampler):
    """Sampler of images (num, 3, H, W), each from the noise of its own seed, which
    `Samples.conditions` hold.
    """

    draws_per_prompt = True  # in batches of any size: `velocity` bounds the network's

    def __init__(
        self, spec: PixelHDMSamplingSpec, model: PixelHDMSpec, objective: PixelHDMObjectiveSpec
    ) -> None:
        self.spec = spec
        self.size = (spec.height, spec.width)
        self.takes_rows = "none" if spec.prompts else "conditions"
        self._model = model
        self._prediction = objective.prediction
        self.row_fields = TEXT_FIELDS[model.text_encoder]
        self._compiled: tuple[nn.Module, nn.Module] | None = None

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return the network's text fields of `num` samples, `size` (num, 2), and the request's
        other conditions.

        Prompts, the request's, else the spec's, else the captions of the rows, get equally many
        samples each, in order. `negative_...` are the fields of the negative prompt; `seed` (num,)
        is included if the request has one, `start` and `strength` with an image to start from.
        Raises ValueError for a condition that the sampler does not take.
        """
        check_no_label(request)
        size = request.size or self.size
        self._model.check_size(*size)
        for prompt in request.prompts:
            if prompt.position != 0:
                raise ValueError(
                    f"prompt={prompt.text!r} was placed at token {prompt.position}, and a "
                    "picture has no places for text; leave the place out."
                )
        prompts = [prompt.text for prompt in request.prompts]
        self._model.check_texts("prompt", prompts)
        prompts = prompts or list(self.spec.prompts)
        negative = self._negative(request)
        each = num
        index = torch.arange(num)
        if prompts:
            each = -(-num // len(prompts))
            conditions = {
                name: values[index // each]
                for name, values in self._encode(prompts, request).items()
            }
            conditions["prompt"] = prompt_bytes(prompts)[index // each]
        elif request.rows is not None:
            conditions = self._of_rows(request.rows, num)
        else:
            raise ValueError(
                "no prompt was given, and there are no captions to take in its place; name a "
                "prompt."
            )
        if negative is not None:
            conditions |= self._beside_negative(conditions, negative, request)
            conditions["negative_prompt"] = prompt_bytes([negative]).expand(num, -1)
        if request.seed is not None:
            if not 0 <= request.seed < 2**62:
                raise ValueError(
                    f"seed={request.seed} must lie between 0 and 2^62 - 1; name another."
                )
            conditions["seed"] = request.seed + index % each
        return (
            conditions
            | {"size": torch.tensor([size]).expand(num, 2)}
            | start_image(request, size, num)
        )

    def _of_rows(self, rows: RealRows, num: int) -> dict[str, Tensor]:
        """Return the text fields of the first rows, and their captions where they have some."""
        conditions = {name: rows.batch[name][:num] for name in self.row_fields}
        if "caption" in conditions:
            conditions["prompt"] = conditions["caption"]
        elif "caption" in rows.columns:
            conditions["prompt"] = torch.from_numpy(rows.columns["caption"][:num]).long()
        return conditions

    def _encode(self, texts: Sequence[str], request: SampleRequest) -> dict[str, Tensor]:
        """Return the batch fields of texts. Raises ValueError if a frozen encoder is needed and the
        request has none."""
        if self._model.text_encoder == "learned":
            return {"caption": caption_bytes(texts, self._model.text_length)}
        if request.encode is None:
            raise ValueError(
                f"prompt={texts[0]!r} needs the frozen text encoder that the model was trained "
                "with, and none is named; set encoders.text to its folder or name."
            )
        encoded = request.encode(texts)
        return {name: encoded[name] for name in self.row_fields}

    def _beside_negative(
        self, conditions: Conditions, negative: str, request: SampleRequest
    ) -> dict[str, Tensor]:
        """Return the text fields beside those of the negative prompt, padded to one length."""
        fields = {}
        for name, other in self._encode([negative], request).items():
            own = conditions[name]
            if name in TOKENWISE:
                longest = max(own.shape[1], other.shape[1])
                own = _padded(own, longest)
                other = _padded(other, longest)
            fields[name] = own
            fields[NEGATIVE + name] = other.to(own).expand_as(own)
        return fields

    def _negative(self, request: SampleRequest) -> str | None:
        """Return the description that guidance leads away from: the request's, or the spec's."""
        if request.negative_prompt is None:
            if self.spec.is_plain:
                return None
            return self.spec.negative_prompt
        self._model.check_texts("negative_prompt", (request.negative_prompt,))
        if self.spec.is_plain:
            raise ValueError(
                f"negative_prompt={request.negative_prompt!r} changes nothing without guidance "
                "(sampling.guidance=1); set sampling.guidance above 1, such as 7.5."
            )
        return request.negative_prompt

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Conditions,
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw `num` images, (num, 3, H, W) on the network's device, in the best dtype of float32,
        weights and `noise`.

        An image is a function of its seed and its conditions, up to rounding. Frames: noise (with
        `start`, the noised image), one a step, one of the final projection. Raises ValueError for
        noise of another shape, and beside seeds.
        """
        spec = self.spec
        device = next(network.parameters()).device
        conditions = {name: values.to(device) for name, values in conditions.items()}
        if "seed" in conditions:
            seeds = conditions["seed"].tolist()
        else:
            seeds = draw_seeds(num, generator)
        x = seeded_normal(seeds, (3, *conditions["size"][0].tolist())).to(
            device, state_dtype(network)
        )
        if noise is not None:
            if "seed" in conditions:
                raise ValueError(
                    f"noise was given beside seed={seeds[0]}, which draws noise; leave one of "
                    "them out."
                )
            x = starting_noise(noise, x.shape, x)
        times = self.times()
        if "start" in conditions:
            times = self.times(float(conditions["strength"][0]))
            x = interpolate(conditions["start"], x, times[:1].to(x), noise_at=0)
        frames = [x]
        record = frames.append if trajectory else ignore
        velocity = self.velocity(network, conditions)
        x = spec.find_solver(SOLVERS)(velocity, x, times, record)
        if spec.final_projection:
            x = x + (1 - times[-1]) * velocity(x, times[-1])
            record(x)
        kept = {name: conditions[name] for name in KEPT_CONDITIONS if name in conditions}
        if noise is None:
            kept["seed"] = torch.tensor(seeds)
        return Samples(x, kept, torch.stack(frames) if trajectory else None)

    def times(self, strength: float = 1.0) -> Tensor:
        """Times t_i = eps + (i / N) (1 - 2 eps), or the last N strength steps of it, float64 on the
        CPU.
        """
        eps = self.spec.eps
        steps = max(1, round(strength * self.spec.steps))
        return torch.linspace(
            eps + (1 - strength) * (1 - 2 * eps), 1 - eps, steps + 1, dtype=torch.float64
        )

    def guided(self, network: nn.Module, conditions: Conditions) -> Velocity:
        """Return `velocity`."""
        return self.velocity(network, conditions)

    def unconditioned(self, conditions: Conditions) -> Conditions:
        """Return the conditions with `keep` (num,) bool, false for the null condition."""
        text = conditions[self.row_fields[0]]
        return {**conditions, "keep": torch.zeros(len(text), dtype=torch.bool, device=text.device)}

    def velocity(self, network: nn.Module, conditions: Conditions) -> Velocity:
        """Return dz/dt at z_t = t x + (1 - t) eps, (B, 3, H, W), by z_t and a scalar t, in z_t's
        dtype.

        Guidance leads away from the text fields that begin with `negative_`, if there are any, else
        from the null condition. The network is compiled once if the spec says so.
        """
        if self.spec.compile:
            if self._compiled is None or self._compiled[0] is not network:
                self._compiled = (network, cast("nn.Module", torch.compile(network)))
            network = self._compiled[1]
        dtype = next(network.parameters()).dtype
        names = [name for name in chain(*TEXT_FIELDS.values()) if name in conditions]
        conditional = {name: conditions[name] for name in names}
        if NEGATIVE + names[0] in conditions:
            negative = {name: conditions[NEGATIVE + name] for name in names}
        else:
            text = conditional[names[0]]
            keep = torch.ones(len(text), dtype=torch.bool, device=text.device)
            negative = conditional | {"keep": ~keep}
            conditional["keep"] = conditions.get("keep", keep)

        def predict(x: Tensor, t: Tensor, conditions: Conditions) -> Tensor:
            limit = max(
                1, MAX_MODULATIONS // (6 * self._model.pixel_width * x.shape[2] * x.shape[3])
            )
            parts = []
            for first in range(0, len(x), limit):
                part = slice(first, first + limit)
                condition = {name: values[part] for name, values in conditions.items()}
                keep = condition.pop("keep", None)
                parts.append(network(x[part].to(dtype), t[part], condition, keep).to(x.dtype))
            output = torch.cat(parts)
            if self._prediction == "velocity":
                return output
            return point_velocity(x, per_sample(t, x), output, noise_at=0)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            scale = self.spec.scale_at(float(t))
            return guided_prediction(
                predict, x, repeat_time(t, x), conditional, negative, scale, self.spec.rescale
            )

        return velocity

    def show(self, samples: Samples) -> Figure:
        """Draw a grid of images with their prompts; several prompts with several images get a row
        each.
        """
        prompts: list[str] = []
        if "prompt" in samples.conditions:
            prompts = to_texts(samples.conditions["prompt"])
        images = [len(list(same)) for _, same in groupby(prompts)]  # of each prompt
        columns = None
        if len(images) > 1 and 1 < images[0] <= MAX_COLUMNS:
            columns = images[0]
        return Figure([ImageGrid(to_pictures(samples.values), prompts, columns)], columns=1)

    def pictures(self, samples: Samples) -> Sequence[Picture]:
        """Return every image with the settings under which its seed reproduces it."""
        spec = self.spec
        pixels = [to_pixels(each) for each in to_pictures(samples.values)]
        common = {
            "size": "x".join(map(str, samples.values.shape[2:])),
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
        own: dict[str, list[str]] = {}
        for name in KEPT_CONDITIONS:
            if name in samples.conditions:
                values = samples.conditions[name]
                if name.endswith("prompt"):
                    own[name] = to_texts(values)
                else:
                    own[name] = [str(value) for value in values.tolist()]
        return [
            Picture(image, {name: values[i] for name, values in own.items()} | common)
            for i, image in enumerate(pixels)
        ]


def _padded(values: Tensor, length: int) -> Tensor:
    """Pad the second axis with zeros to a length."""
    return functional.pad(values, (*(0, 0) * (values.ndim - 2), 0, length - values.shape[1]))


def prompt_bytes(texts: Sequence[str]) -> Tensor:
    """Encode whole texts as UTF-8: (number of texts, longest) int64, 0 behind the end."""
    return caption_bytes(texts, max(len(text.encode()) for text in texts))


def to_texts(tokens: Tensor) -> list[str]:
    """Decode the bytes of `prompt_bytes`."""
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in tokens.tolist()]


def start_image(request: SampleRequest, size: tuple[int, int], num: int) -> dict[str, Tensor]:
    """Return `start` (num, 3, height, width) and `strength` (num,) float64; {} if samples start
    from noise.
    """
    if not 0 < request.strength <= 1:
        raise ValueError(
            f"strength={request.strength:g} must lie above 0 and be at most 1: the share of "
            "the way from noise that is done again; name another, such as 0.6."
        )
    if request.start is None:
        if request.strength != 1:
            raise ValueError(
                f"strength={request.strength:g} needs an image to start from; name one, or "
                "leave it out."
            )
        return {}
    if tuple(request.start.shape) != (3, *size):
        raise ValueError(
            f"start has the shape {tuple(request.start.shape)}, and samples of size "
            f"{size[0]}x{size[1]} start from {(3, *size)}; resize the image, or name its size."
        )
    strength = torch.full((num,), request.strength, dtype=torch.float64)
    return {"start": request.start.expand(num, -1, -1, -1), "strength": strength}
