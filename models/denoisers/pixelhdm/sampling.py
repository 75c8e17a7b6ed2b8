"""PixelHDM's sampler: images of any size from noise at t = 0, or from an image, guided by texts.

B batch, H and W height and width in pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from denoisers.checks import check_no_label
from denoisers.contract import DEFAULT_REQUEST, Picture, SampleRequest, Samples
from denoisers.figures import Figure
from denoisers.pixelhdm.guided_velocity import GuidedVelocity
from denoisers.pixelhdm.sample_conditions import TextConditions, seeds_from, start_image
from denoisers.pixelhdm.sample_pictures import picture_files, sample_grid
from denoisers.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from denoisers.processes.flow.dpm_solvers import dpmpp_2m, dpmpp_2s
from denoisers.processes.flow.guidance import Guidance
from denoisers.processes.flow.linear_path import Velocity, interpolate
from denoisers.processes.flow.solvers import Solver, euler, heun_then_euler, ignore, midpoint
from denoisers.processes.sample_draws import draw_seeds, seeded_normal, starting_noise, state_dtype

SOLVERS: dict[str, Solver] = {
    "euler": Solver(euler, order=1, evaluations=1),
    "heun": Solver(heun_then_euler, order=2, evaluations=2, fewer_at_the_end=1),
    "dpmpp_2m": Solver(dpmpp_2m, order=2, evaluations=1),
    "midpoint": Solver(midpoint, order=2, evaluations=2),
    "dpmpp_2s": Solver(dpmpp_2s, order=2, evaluations=2),
}
KEPT_CONDITIONS = ("prompt", "negative_prompt", "seed", "strength")
"""Conditions that samples keep, for people: small ones."""


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
        velocity = self._velocity(network, conditions)
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

    def _velocity(self, network: nn.Module, conditions: Mapping[str, Tensor]) -> Velocity:
        return GuidedVelocity(
            self._forward(network),
            next(network.parameters()).dtype,
            self._prediction,
            self._model.pixel_width,
            self._guidance,
            conditions,
        )

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
