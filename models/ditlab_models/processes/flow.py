"""Flow matching along straight lines (Lipman et al. 2023, arXiv:2210.02747; Liu et al. 2023,
arXiv:2209.03003).

`VelocityObjective` is the regression of the velocity, for any network `network(x, t[, label])` of
images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.contract import Batch, NoiseSource, Spec
from ditlab_models.extensions import components_of
from ditlab_models.figure_makers import FigureDrawer, FigureMakers
from ditlab_models.layers.embeddings import drop_labels
from ditlab_models.processes.analytic_targets import GaussianMixture
from ditlab_models.processes.draws import held_out_draws, mean_over_quarters, quarter_mean
from ditlab_models.processes.specs import (
    ImageModelSpec,
    VelocitySpec,
    VelocityWeights,
    quarter_names,
)
from ditlab_models.tensors import per_sample, widened

Velocity = Callable[[Tensor, Tensor], Tensor]
"""(x, t) -> dx/dt in x's shape; t is a scalar tensor or broadcasts against x."""
NoiseAt = Literal[0, 1]
FLOOR = 1e-2
ErrorFunction = Callable[[Tensor, Tensor], Tensor]
"""(predicted, target) -> a mean over the batch, a scalar, or its value for each sample, (B,)."""


def interpolate(data: Tensor, noise: Tensor, t: Tensor, noise_at: NoiseAt = 1) -> Tensor:
    """Compute x_t between data and noise (batch, ...) at times t (batch,), in the better of their
    dtypes.
    """
    dtype = torch.promote_types(data.dtype, noise.dtype)
    t = per_sample(t.to(dtype), data)
    data = data.to(dtype)
    noise = noise.to(dtype)
    if noise_at == 1:
        return torch.lerp(data, noise, t)
    return torch.lerp(noise, data, t)


def repeat_time(t: Tensor | float, x: Tensor) -> Tensor:
    """Repeat a scalar time of the host for each sample of x (B, ...): (B,), in x's dtype, without a
    copy to a GPU.
    """
    return x.new_full((len(x),), float(t))


def velocity_target(data: Tensor, noise: Tensor, noise_at: NoiseAt = 1) -> Tensor:
    """Compute dx_t/dt, constant along the line."""
    return noise - data if noise_at == 1 else data - noise


def endpoints(x_t: Tensor, velocity: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Compute x at t = 0 and x at t = 1 of the straight line through x_t with this velocity; t
    (batch,).
    """
    t = per_sample(t, x_t)
    return x_t - t * velocity, x_t + (1 - t) * velocity


def gaussian_velocity(x: Tensor, t: Tensor, mean: float | Tensor, std: float | Tensor) -> Tensor:
    """The exact velocity E[x1 - x0 | x_t = x] for data N(mean, std^2), noise at t = 1;
    `point_velocity` where std = 0."""
    variance = (1 - t) ** 2 * std**2 + t**2
    return -mean + (t - (1 - t) * std**2) / variance * (x - (1 - t) * mean)


def point_velocity(x: Tensor, t: Tensor, point: Tensor, noise_at: NoiseAt = 1) -> Tensor:
    """The exact velocity for data at one point, away from the data's end of time: (x - point) / t,
    noise at t = 1.

    It is also the velocity of a network that predicts the data as `point`.
    """
    if noise_at == 1:
        return (x - point) / t
    return (point - x) / (1 - t)


def velocity_errors(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean squared error per pixel of each sample, (B,)."""
    return functional.mse_loss(predicted, target, reduction="none").flatten(1).mean(1)


def direction_errors(predicted: Tensor, target: Tensor) -> Tensor:
    """1 - cos(predicted, target) of each image, (B,), as one vector (FasterDiT, arXiv:2410.10356).

    FLOOR, added in quadrature to the prediction's root mean square, keeps the gradient of a first
    prediction of 0 finite.
    """
    predicted = predicted.flatten(1)
    target = target.flatten(1)
    length = (predicted.square().mean(1) + FLOOR**2).sqrt() * target.square().mean(1).sqrt()
    return 1 - (predicted * target).mean(1) / length


def direction_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean of `direction_errors` over images, a scalar."""
    return direction_errors(predicted, target).mean()


COMPONENTS: dict[str, ErrorFunction] = {
    "velocity": functional.mse_loss,
    "direction": direction_error,
}
BY_SAMPLE: dict[str, ErrorFunction] = {"velocity": velocity_errors, "direction": direction_errors}


class ImageObjective(FigureDrawer):
    """Base of the losses of a `network(x_t, t[, label])` of images."""

    def __init__(self, weights: Spec, model: ImageModelSpec, figure_makers: FigureMakers) -> None:
        self.weights = weights.model_dump()
        self.figure_makers = figure_makers
        self._null_label = model.num_classes
        self._label_dropout = model.label_dropout

    def knows_optimum(self, law: Any) -> bool:
        """Return True for a mixture of Gaussians without classes."""
        return isinstance(law, GaussianMixture) and self._null_label is None

    @torch.no_grad()
    def excess_loss(
        self, network: nn.Module, law: GaussianMixture, batch: Batch, noise_source: NoiseSource
    ) -> Tensor:
        """Compute the mean squared distance to the optimal prediction, that expected given x_t, per
        pixel, (B,).
        """

        def distance(quarter: int) -> Tensor:
            predicted, best = self._beside_optimum(
                network, law, *held_out_draws(batch, noise_source, quarter)
            )
            return velocity_errors(predicted.to(best.dtype), best)

        return quarter_mean(distance)

    def _beside_optimum(
        self, network: nn.Module, law: GaussianMixture, image: Tensor, noise: Tensor, time: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the network's prediction at times (B,) in [0, 1), and the optimal one in
        float64.
        """
        raise NotImplementedError

    def _label(self, batch: Batch) -> Tensor | None:
        return None if self._null_label is None else batch["label"]

    def _training_label(self, batch: Batch, noise_source: NoiseSource) -> Tensor | None:
        """Return the classes of a training batch, some replaced by the null class. Draws
        `label_dropout`.
        """
        label = self._label(batch)
        if label is None or self._null_label is None or self._label_dropout == 0:
            return label
        uniform = noise_source.uniform("label_dropout", label.shape)
        return drop_labels(label, uniform, self._label_dropout, self._null_label)

    @staticmethod
    def _predict(network: nn.Module, x_t: Tensor, t: Tensor, label: Tensor | None) -> Tensor:
        x_t = x_t.to(next(network.parameters()).dtype)
        return widened(network(x_t, t) if label is None else network(x_t, t, label))


class VelocityObjective(ImageObjective):
    """Regression of x1 - x0 (noise minus data) by `network(x_t, t[, label])`."""

    def __init__(
        self, spec: VelocitySpec, model: ImageModelSpec, figure_makers: FigureMakers
    ) -> None:
        super().__init__(spec.weights, model, figure_makers)
        others = components_of(spec.weights, VelocityWeights)
        self._components: dict[str, ErrorFunction] = {**COMPONENTS, **others}
        self._measured: dict[str, ErrorFunction] = {**BY_SAMPLE, **others}
        self._time = spec.time

    def loss(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute the components with a weight above 0. Draws `time`, `noise` and, for a
        conditional model, `label_dropout`."""
        image = batch["image"]
        t = self._time.draw(noise_source, image.shape[0])
        noise = noise_source.normal("noise", image.shape)
        label = self._training_label(batch, noise_source)
        components = {name: self._components[name] for name in self.active}
        return self._errors(network, image, noise, t, label, components)

    def best_output(self, batch: Batch, noise_source: NoiseSource) -> Tensor:
        """Return noise minus data, (B, C, H, W)."""
        return noise_source.normal("noise", batch["image"].shape) - batch["image"]

    @torch.no_grad()
    def metrics(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute every component at uniform times, and `velocity_t0` .. `velocity_t3` (nearest to
        noise) by quarter of time.

        Every image is seen once in each quarter, under its own label. Costs four forward passes.
        """
        label = self._label(batch)

        def errors(quarter: int) -> dict[str, Tensor]:
            image, noise, t = held_out_draws(batch, noise_source, quarter)
            return self._errors(network, image, noise, t, label, self._measured)

        return mean_over_quarters(errors, "velocity")

    def _beside_optimum(
        self, network: nn.Module, law: GaussianMixture, image: Tensor, noise: Tensor, time: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the velocity of the network, and E[noise - data | x_t]."""
        share = time.double()[:, None]
        x_t = interpolate(image, noise, time)
        data, noise = law.expectations(x_t.flatten(1), 1 - share, share)
        return self._predict(network, x_t, time, None), velocity_target(data, noise).view_as(image)

    def metric_names(self) -> Sequence[str]:
        """Return the names of `metrics`."""
        return (*self._components, *quarter_names("velocity"))

    def _errors(
        self,
        network: nn.Module,
        image: Tensor,
        noise: Tensor,
        t: Tensor,
        label: Tensor | None,
        components: Mapping[str, ErrorFunction],
    ) -> dict[str, Tensor]:
        """Compute errors of the network's velocity at x_t, in float32 or better whatever the
        parameters' dtype.
        """
        predicted = self._predict(network, interpolate(image, noise, t), t, label)
        target = velocity_target(image, noise).to(predicted.dtype)
        return {name: component(predicted, target) for name, component in components.items()}
