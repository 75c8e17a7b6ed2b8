"""Regression of the velocity of a straight-line flow, for any network `network(x, t[, label])` of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from denoisers.contract import NoiseSource
from denoisers.figure_makers import FigureDrawer, FigureMaker
from denoisers.image_spec import ImageModelSpec
from denoisers.layers.label_embedding import drop_labels
from denoisers.loss_components import components_of
from denoisers.processes.flow.linear_path import interpolate, velocity_target
from denoisers.processes.flow.spec import VelocitySpec, VelocityWeights
from denoisers.processes.time_quarters import draw_times, mean_over_quarters, quarter_names


def velocity_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean squared error per pixel, a scalar."""
    return functional.mse_loss(predicted, target)


def direction_error(predicted: Tensor, target: Tensor, floor: float = 1e-2) -> Tensor:
    """Mean over images of 1 - cos(predicted, target), each image one vector (FasterDiT, arXiv:2410.10356).

    `floor` is added in quadrature to the prediction's root mean square: a zero-initialised head predicts 0, where the
    cosine has no gradient to speak of, and torch's own epsilon (1e-8) would make that of the first step 1e8.
    """
    predicted, target = predicted.flatten(1), target.flatten(1)
    length = (predicted.square().mean(1) + floor**2).sqrt() * target.square().mean(1).sqrt()
    return (1 - (predicted * target).mean(1) / length).mean()


ErrorFunction = Callable[[Tensor, Tensor], Tensor]
"""(predicted, target) -> a mean over the batch."""

COMPONENTS: dict[str, ErrorFunction] = {
    "velocity": velocity_error,
    "direction": direction_error,
}


class VelocityObjective(FigureDrawer):
    """Regression of x1 - x0 (noise minus data) by `network(x_t, t[, label])`."""

    def __init__(self, spec: VelocitySpec, model: ImageModelSpec, figure_makers: Mapping[str, FigureMaker]) -> None:
        self.weights: dict[str, float] = spec.weights.model_dump()
        self.modules: nn.Module | None = None
        self._components: dict[str, ErrorFunction] = {**COMPONENTS, **components_of(spec.weights, VelocityWeights)}
        self._active = [name for name, weight in self.weights.items() if weight > 0]
        self._time = spec.time
        self._null_label = model.num_classes
        self._label_dropout = model.label_dropout
        self.figure_makers = dict(figure_makers)

    def loss(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Compute the components with a weight above 0.

        Draws `time`, `noise` and, for a conditional model, `label_dropout`.
        """
        image = batch["image"]
        t = self._time.draw(noise_source, image.shape[0])
        noise = noise_source.normal("noise", image.shape)
        label = self._label(batch)
        if label is not None and self._null_label is not None and self._label_dropout > 0:
            uniform = noise_source.uniform("label_dropout", label.shape)
            label = drop_labels(label, uniform, self._label_dropout, self._null_label)
        return self._errors(network, image, noise, t, label, self._active)

    @torch.no_grad()
    def metrics(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Compute every component at uniform times, and `velocity_t0` .. `velocity_t3` by quarter of time.

        Every image is seen once in each quarter of [0, 1) (t3 is nearest to noise), so every figure is a mean over the
        whole batch, whatever its size; no label is dropped. Costs four forward passes.
        """
        image, label = batch["image"], self._label(batch)

        def errors(quarter: int) -> dict[str, Tensor]:
            t = draw_times(noise_source, quarter, len(image))
            noise = noise_source.normal(f"noise_t{quarter}", image.shape)
            return self._errors(network, image, noise, t, label, self._components)

        return mean_over_quarters(errors, "velocity")

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the means of `metrics` as they are."""
        return dict(means)

    def metric_names(self) -> Sequence[str]:
        """Return the names of `metrics`."""
        return (*self._components, *quarter_names("velocity"))

    def _label(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        return None if self._null_label is None else batch["label"]

    def _errors(
        self, network: nn.Module, image: Tensor, noise: Tensor, t: Tensor, label: Tensor | None, names: Iterable[str]
    ) -> dict[str, Tensor]:
        """Compute errors of the network's velocity at x_t, in float32 or better whatever the parameters' dtype."""
        x_t = interpolate(image, noise, t).to(next(network.parameters()).dtype)
        predicted = network(x_t, t) if label is None else network(x_t, t, label)
        predicted = predicted.to(torch.promote_types(predicted.dtype, torch.float32))
        target = velocity_target(image, noise).to(predicted.dtype)
        return {name: self._components[name](predicted, target) for name in names}
