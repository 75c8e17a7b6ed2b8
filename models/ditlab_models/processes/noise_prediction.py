"""Training and sampling under the Gaussian process by a network that predicts the noise (Ho et al. 2020,
arXiv:2006.11239), and perhaps the variance of a reverse step (Nichol and Dhariwal 2021, arXiv:2102.09672).

The published DiT is trained and sampled so. The network is given whole timesteps 0 .. T - 1, as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ditlab_models.contract import NoiseSource, Samples
from ditlab_models.figure_makers import FigureDrawer, FigureMaker
from ditlab_models.layers.embeddings import drop_labels
from ditlab_models.processes.draws import SampleDraws, held_out_draws, mean_over_quarters, starting_noise, state_dtype
from ditlab_models.processes.flow import velocity_errors
from ditlab_models.processes.flow_sampling import ImageSampler
from ditlab_models.processes.gaussian import (
    bits,
    bound_terms,
    interpolate_log_variance,
    linear_schedule,
    posterior_mean,
    posterior_std,
    sample_ancestral,
    sample_ddim,
    timesteps,
)
from ditlab_models.processes.known_laws import GaussianMixture
from ditlab_models.processes.solvers import ignore
from ditlab_models.processes.specs import GaussianSamplingSpec, GaussianSpec, ImageModelSpec, quarter_names


class NoiseObjective(FigureDrawer):
    """Regression of the noise by `network(x_t, t[, label])`, and the variational bound that trains its variance."""

    detaching = ("bound",)

    def __init__(self, spec: GaussianSpec, model: ImageModelSpec, figure_makers: Mapping[str, FigureMaker]) -> None:
        self.weights: dict[str, float] = spec.weights.model_dump()
        self.modules: nn.Module | None = None
        self._spec = spec
        self._schedule = linear_schedule(spec.noise)
        self._channels = model.channels
        self._null_label = model.num_classes
        self._label_dropout = model.label_dropout
        self.figure_makers = dict(figure_makers)

    def loss(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Compute the components with a weight above 0. Draws `time`, `noise` and, for a conditional model,
        `label_dropout`."""
        image = batch["image"]
        t = self.timestep(noise_source.uniform("time", (len(image),)))
        noise = noise_source.normal("noise", image.shape)
        label = self._label(batch)
        if label is not None and self._null_label is not None and self._label_dropout > 0:
            uniform = noise_source.uniform("label_dropout", label.shape)
            label = drop_labels(label, uniform, self._label_dropout, self._null_label)
        errors = self._errors(network, image, noise, t, label, with_bound=self.weights["bound"] > 0)
        return {name: value.mean() for name, value in errors.items()}

    @torch.no_grad()
    def metrics(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Compute `noise`, `bound` (bits per dimension, without the constant of the last timestep), (B,) each, and
        `noise_t0` .. `noise_t3` (nearest to noise) by quarter of the timesteps.

        Every image is seen once in each quarter, under its own label. Costs four forward passes.
        """
        label = self._label(batch)

        def errors(quarter: int) -> dict[str, Tensor]:
            image, noise, time = held_out_draws(batch, noise_source, quarter)
            return self._errors(network, image, noise, self.timestep(time), label)

        return mean_over_quarters(errors, "noise")

    def knows_optimum(self, law: Any) -> bool:
        """Return True for a mixture of Gaussians without classes."""
        return isinstance(law, GaussianMixture) and self._null_label is None

    @torch.no_grad()
    def regret(
        self, network: nn.Module, law: GaussianMixture, batch: Mapping[str, Tensor], noise_source: NoiseSource
    ) -> Tensor:
        """Compute the mean squared distance to the optimal noise E[noise | x_t], per pixel, (B,)."""

        def errors(quarter: int) -> dict[str, Tensor]:
            image, noise, time = held_out_draws(batch, noise_source, quarter)
            t = self.timestep(time)
            x_t, bar = self._schedule.noised(image, noise, t), self._schedule.alphas_cumprod.to(t.device)[t][:, None]
            best = law.expectations(x_t.flatten(1), bar.sqrt(), (1 - bar).sqrt())[1].view_as(image)
            return {"regret": velocity_errors(self._predict(network, x_t, t, None)[0].to(best.dtype), best)}

        return mean_over_quarters(errors, "regret")["regret"]

    def metric_names(self) -> Sequence[str]:
        """Return the names of `metrics`."""
        return ("noise", "bound", *quarter_names("noise"))

    def timestep(self, time: Tensor) -> Tensor:
        """Turn times in [0, 1), (B,), into timesteps 0 .. T - 1, int64."""
        num_steps = self._schedule.num_steps
        return (num_steps * time).long().clamp(max=num_steps - 1)

    def _label(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        return None if self._null_label is None else batch["label"]

    def _errors(
        self, network: nn.Module, image: Tensor, noise: Tensor, t: Tensor, label: Tensor | None,
        with_bound: bool = True,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Compute the components of each sample, (B,), in float32 or better whatever the parameters' dtype."""
        predicted, v = self._predict(network, self._schedule.noised(image, noise, t), t, label)
        noise = noise.to(predicted.dtype)
        errors = {"noise": velocity_errors(predicted, noise)}
        if with_bound:
            terms = self._schedule.step_terms(t, predicted)
            log_variance = terms.log_variance(self._spec.variance, v)
            # The mean is detached: its gradient under the bound is noisier than that of the noise's regression.
            error = noise - predicted.detach()
            nats = bound_terms(image.to(predicted.dtype), error, t, terms, log_variance)
            errors["bound"] = self._schedule.num_steps * bits(nats)  # a uniform t stands for all T of the sum
        return errors

    def _predict(
        self, network: nn.Module, x_t: Tensor, t: Tensor, label: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Predict the noise in the shape of x_t, and the v of a learned variance, if there is one."""
        x_t, time = x_t.to(next(network.parameters()).dtype), t.to(torch.float32)
        output: Tensor = network(x_t, time) if label is None else network(x_t, time, label)
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        if self._spec.variance != "learned_range":
            return output, None
        return output[:, : self._channels], output[:, self._channels :]


class GaussianSampler(ImageSampler):
    """Sampler by the reverse process over some of its timesteps; `trajectory` has a frame for each, and the noise."""

    def __init__(
        self, spec: GaussianSamplingSpec, objective: GaussianSpec, image_shape: tuple[int, int, int],
        num_classes: int | None,
    ) -> None:  # fmt: skip
        super().__init__(image_shape, num_classes)
        self.spec = spec
        self._variance = objective.variance
        self._schedule = linear_schedule(objective.noise)
        # The channels of a variance are those of the conditional prediction.
        self.guidance, self.guided_channels = spec.guidance, spec.guided_channels or image_shape[0]

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
        """Draw `num` images (num, channels, height, width), in float32 or better, on the network's device, each by its
        own generator; steps + 1 frames."""
        device, schedule, channels = next(network.parameters()).device, self._schedule, self.image_shape[0]
        draws = SampleDraws(num, generator, device)
        x = draws.normal(torch.empty(num, *self.image_shape, device="meta")).to(state_dtype(network))
        if noise is not None:
            x = starting_noise(noise, x.shape, x)
        conditions = {name: values.to(device) for name, values in conditions.items()}
        predict = self.guided(network, conditions)
        frames = [x]
        record = frames.append if trajectory else ignore
        steps = timesteps(schedule.num_steps, self.spec.steps)

        def denoise(x: Tensor, t: int) -> Tensor:
            return schedule.x0_of(x, predict(x, t)[:, :channels], t)

        def reverse(x: Tensor, t: int, s: int) -> tuple[Tensor, float | Tensor]:
            output = predict(x, t)
            mean = posterior_mean(schedule, schedule.x0_of(x, output[:, :channels], t), x, t, s)
            return mean, self._std(t, s, output[:, channels:])

        if self.spec.solver == "ddpm":
            x = sample_ancestral(reverse, x, steps, draws.normal, record)
        else:
            x = sample_ddim(denoise, schedule, x, steps, draws.normal, self.spec.eta, record)
        return Samples(x, dict(conditions), torch.stack(frames) if trajectory else None)

    def _std(self, t: int, s: int, v: Tensor) -> float | Tensor:
        """Standard deviation of the step from t to s; 0 to s = -1. `v`: channels of a learned variance, if any."""
        posterior = posterior_std(self._schedule, t, s)
        if s < 0 or self._variance == "posterior":
            return posterior
        beta = 1 - self._schedule.alpha_bar(t) / self._schedule.alpha_bar(s)
        if self._variance == "beta":
            return beta**0.5
        return (0.5 * interpolate_log_variance(v, 2 * math.log(posterior), math.log(beta))).exp()
