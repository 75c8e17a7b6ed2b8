"""Training and sampling under the Gaussian process by a network that predicts the noise (Ho et al.
2020, arXiv:2006.11239), and perhaps the variance of a reverse step (Nichol and Dhariwal 2021,
arXiv:2102.09672).

The published DiT is trained and sampled so. The network is given whole timesteps 0 .. T - 1, as
they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ditlab_models.contract import Batch, NoiseSource
from ditlab_models.figure_makers import FigureMakers
from ditlab_models.processes.analytic_targets import GaussianMixture
from ditlab_models.processes.draws import SampleDraws, held_out_draws, mean_over_quarters
from ditlab_models.processes.flow import ImageObjective, velocity_errors
from ditlab_models.processes.flow_sampling import Guided, ImageSampler
from ditlab_models.processes.gaussian import (
    Draw,
    bound_terms,
    interpolate_log_variance,
    linear_schedule,
    posterior_mean,
    posterior_std,
    sample_ancestral,
    sample_ddim,
    timesteps,
)
from ditlab_models.processes.solvers import StepCallback
from ditlab_models.processes.specs import (
    GaussianSamplingSpec,
    GaussianSpec,
    ImageModelSpec,
    quarter_names,
)


class NoiseObjective(ImageObjective):
    """Regression of the noise by `network(x_t, t[, label])`, and the variational bound that trains
    its variance.
    """

    detaching = ("bound",)

    def __init__(
        self, spec: GaussianSpec, model: ImageModelSpec, figure_makers: FigureMakers
    ) -> None:
        super().__init__(spec.weights, model, figure_makers)
        self._spec = spec
        self._schedule = linear_schedule(spec.noise)
        self._channels = model.channels

    def loss(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute the components with a weight above 0. Draws `time`, `noise` and, for a
        conditional model, `label_dropout`."""
        image = batch["image"]
        t = self.timestep(noise_source.uniform("time", (len(image),)))
        noise = noise_source.normal("noise", image.shape)
        label = self._training_label(batch, noise_source)
        errors = self._errors(network, image, noise, t, label, with_bound=self.weights["bound"] > 0)
        return {name: value.mean() for name, value in errors.items()}

    def best_output(self, batch: Batch, noise_source: NoiseSource) -> Tensor:
        """Return the noise, with channels of 0 for a learned variance, which `bound` alone
        trains."""
        noise = noise_source.normal("noise", batch["image"].shape)
        if self._spec.variance != "learned_range":
            return noise
        return torch.cat((noise, torch.zeros_like(noise)), dim=1)

    @torch.no_grad()
    def metrics(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute `noise`, `bound` (bits per dimension, without the constant of the last timestep),
        (B,) each, and `noise_t0` .. `noise_t3` (nearest to noise) by quarter of the timesteps.

        Every image is seen once in each quarter, under its own label. Costs four forward passes.
        """
        label = self._label(batch)

        def errors(quarter: int) -> dict[str, Tensor]:
            image, noise, time = held_out_draws(batch, noise_source, quarter)
            return self._errors(network, image, noise, self.timestep(time), label)

        return mean_over_quarters(errors, "noise")

    def _beside_optimum(
        self, network: nn.Module, law: GaussianMixture, image: Tensor, noise: Tensor, time: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the noise that the network predicts, and E[noise | x_t]."""
        t = self.timestep(time)
        x_t = self._schedule.noised(image, noise, t)
        bar = self._schedule.alphas_cumprod.to(t.device)[t][:, None]
        best = law.expectations(x_t.flatten(1), bar.sqrt(), (1 - bar).sqrt())[1].view_as(image)
        return self._predicted(network, x_t, t, None)[0], best

    def metric_names(self) -> Sequence[str]:
        """Return the names of `metrics`."""
        return ("noise", "bound", *quarter_names("noise"))

    def timestep(self, time: Tensor) -> Tensor:
        """Turn times in [0, 1), (B,), into timesteps 0 .. T - 1, int64."""
        num_steps = self._schedule.num_steps
        return (num_steps * time).long().clamp(max=num_steps - 1)

    def _errors(
        self,
        network: nn.Module,
        image: Tensor,
        noise: Tensor,
        t: Tensor,
        label: Tensor | None,
        with_bound: bool = True,
    ) -> dict[str, Tensor]:
        """Compute the components of each sample, (B,), in float32 or better whatever the
        parameters' dtype.
        """
        predicted, v = self._predicted(network, self._schedule.noised(image, noise, t), t, label)
        noise = noise.to(predicted.dtype)
        errors = {"noise": velocity_errors(predicted, noise)}
        if with_bound:
            terms = self._schedule.step_terms(t, predicted)
            log_variance = terms.log_variance(self._spec.variance, v)
            # The mean is detached: its gradient under the bound is noisier than that of the noise's
            # regression.
            error = noise - predicted.detach()
            nats = bound_terms(image.to(predicted.dtype), error, t, terms, log_variance)
            bits = nats.flatten(1).mean(1) / math.log(2)
            # a uniform t stands for all T of the sum
            errors["bound"] = self._schedule.num_steps * bits
        return errors

    def _predicted(
        self, network: nn.Module, x_t: Tensor, t: Tensor, label: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Predict the noise in the shape of x_t, and the v of a learned variance, if there is
        one.
        """
        output = self._predict(network, x_t, t.to(torch.float32), label)
        if self._spec.variance != "learned_range":
            return output, None
        return output[:, : self._channels], output[:, self._channels :]


class GaussianSampler(ImageSampler):
    """Sampler by the reverse process over some of its timesteps; `trajectory` has a frame for each,
    and the noise.
    """

    def __init__(
        self,
        spec: GaussianSamplingSpec,
        objective: GaussianSpec,
        image_shape: tuple[int, int, int],
        num_classes: int | None,
    ) -> None:
        super().__init__(image_shape, num_classes)
        self.spec = spec
        self._variance = objective.variance
        self._schedule = linear_schedule(objective.noise)
        # The channels of a variance are those of the conditional prediction.
        self.guidance = spec.guidance
        self.guided_channels = spec.guided_channels or image_shape[0]

    def _draws(self, num: int, generator: torch.Generator, device: torch.device) -> Draw:
        return SampleDraws(num, generator, device).normal

    def _solve(self, predict: Guided, x: Tensor, draw: Draw, record: StepCallback) -> Tensor:
        schedule = self._schedule
        channels = self.image_shape[0]
        steps = timesteps(schedule.num_steps, self.spec.steps)

        def denoise(x: Tensor, t: int) -> Tensor:
            return schedule.x0_of(x, predict(x, t)[:, :channels], t)

        def reverse(x: Tensor, t: int, s: int) -> tuple[Tensor, float | Tensor]:
            output = predict(x, t)
            mean = posterior_mean(schedule, schedule.x0_of(x, output[:, :channels], t), x, t, s)
            return mean, self._std(t, s, output[:, channels:])

        if self.spec.solver == "ddpm":
            return sample_ancestral(reverse, x, steps, draw, record)
        return sample_ddim(denoise, schedule, x, steps, draw, self.spec.eta, record)

    def _std(self, t: int, s: int, v: Tensor) -> float | Tensor:
        """Standard deviation of the step from t to s; 0 to s = -1. `v`: channels of a learned
        variance, if any.
        """
        posterior = posterior_std(self._schedule, t, s)
        if s < 0 or self._variance == "posterior":
            return posterior
        beta = 1 - self._schedule.alpha_bar(t) / self._schedule.alpha_bar(s)
        if self._variance == "beta":
            return beta**0.5
        return (0.5 * interpolate_log_variance(v, 2 * math.log(posterior), math.log(beta))).exp()
