"""Samples by integration of a network's velocity from noise at t = 1 to data at t = 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from denoisers.checks import check_no_prompts
from denoisers.contract import DEFAULT_REQUEST, SampleRequest, Samples
from denoisers.figures import Figure
from denoisers.processes.flow.figures import sample_figure
from denoisers.processes.flow.guidance import guided_prediction
from denoisers.processes.flow.linear_path import Velocity, repeat_time
from denoisers.processes.flow.solvers import SOLVERS, ignore
from denoisers.processes.flow.spec import FlowSamplingSpec
from denoisers.processes.sample_draws import starting_noise, state_dtype


class FlowSampler:
    """Sampler of images of one shape, conditioned on a class where the model has classes."""

    takes_rows: Literal["none", "conditions", "completed"] = "none"
    draws_per_prompt = False
    max_batch_size: int | None = None

    def __init__(self, spec: FlowSamplingSpec, image_shape: tuple[int, int, int], num_classes: int | None) -> None:
        self.spec = spec
        self.image_shape = image_shape
        self.num_classes = num_classes

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return `label` (num,) int64, the requested class or every class in turn; {} for an unconditional model."""
        check_no_prompts(request)
        label = request.label
        if self.num_classes is None:
            if label is not None:
                raise ValueError(
                    f"label={label} was given to an unconditional model (model.num_classes is null); "
                    "leave the label out, or train with model.num_classes."
                )
            return {}
        if label is None:
            return {"label": torch.arange(num) % self.num_classes}
        if not 0 <= label < self.num_classes:
            raise ValueError(
                f"label={label} is no class of this model (model.num_classes={self.num_classes}); "
                f"choose a label from 0 to {self.num_classes - 1}."
            )
        return {"label": torch.full((num,), label)}

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
        """Draw `num` images, (num, channels, height, width), on the network's device.

        In the best dtype of float32, the parameters and `noise`. A trajectory has steps + 1 frames.
        """
        device = next(network.parameters()).device
        draws = [torch.randn(self.image_shape, generator=generator, device=generator.device) for _ in range(num)]
        x = torch.stack(draws).to(device, state_dtype(network))
        if noise is not None:
            x = starting_noise(noise, x.shape, x)
        conditions = {name: values.to(device) for name, values in conditions.items()}
        times = torch.linspace(1, 0, self.spec.steps + 1, dtype=torch.float64)
        frames = [x]
        record = frames.append if trajectory else ignore
        velocity = self._velocity(network, conditions)
        x = SOLVERS[self.spec.solver].integrate(velocity, x, times, record)
        return Samples(x, dict(conditions), torch.stack(frames) if trajectory else None)

    def _velocity(self, network: nn.Module, conditions: Mapping[str, Tensor]) -> Velocity:
        """Guided velocity of the network, as a function of x and a scalar time, in x's dtype."""
        dtype = next(network.parameters()).dtype

        def predict(x: Tensor, t: Tensor, conditions: Mapping[str, Tensor]) -> Tensor:
            output: Tensor = network(x.to(dtype), t, *conditions.values())
            return output.to(x.dtype)

        label = conditions.get("label")
        if label is None or self.num_classes is None:
            return lambda x, t: predict(x, repeat_time(t, x), {})
        conditional, null = {"label": label}, {"label": torch.full_like(label, self.num_classes)}
        return lambda x, t: guided_prediction(predict, x, repeat_time(t, x), conditional, null, self.spec.guidance)

    def show(self, samples: Samples) -> Figure:
        """Draw a grid of images; classes in turn get a column each."""
        return sample_figure(samples)
