"""PixelHDM's losses: the velocity, the velocity by frequency, and alignment with a frozen encoder.

REPA aligns image tokens with the encoder's features of the clean image (Yu et al.,
arXiv:2410.06940).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.contract import Batch, LossComponent, NoiseSource
from ditlab_models.extensions import components_of
from ditlab_models.figure_makers import FigureDrawer
from ditlab_models.pixelhdm.figures import figure_makers
from ditlab_models.pixelhdm.spec import (
    IMAGE_FEATURES,
    PixelHDMObjectiveSpec,
    PixelHDMSpec,
    PixelHDMWeights,
)
from ditlab_models.processes.draws import draw_times, mean_over_quarters
from ditlab_models.processes.flow import (
    interpolate,
    point_velocity,
    velocity_errors,
    velocity_target,
)
from ditlab_models.processes.frequency_loss import frequency_error, frequency_weights
from ditlab_models.processes.specs import DCT_BLOCK, quarter_names
from ditlab_models.tensors import per_sample, wide_dtype, widened

EVALUATION_EPS = 0.05
"""Distance of held-out times from 0 and 1, whatever the training's: they are the times of
sampling.
"""
EPS = 1e-6


class PixelHDMObjective(FigureDrawer):
    """Regression of x - eps, or x, by `network(z_t, t, condition, ...)`."""

    def __init__(self, spec: PixelHDMObjectiveSpec, model: PixelHDMSpec) -> None:
        self.weights = spec.weights.model_dump()
        aligns = spec.weights.alignment > 0
        self.modules = Alignment(model.width, spec.alignment_width) if aligns else None
        self.figure_makers = figure_makers(spec)
        self._spec = spec
        self._model = model
        self._others: dict[str, LossComponent] = components_of(spec.weights, PixelHDMWeights)
        self._conditions = [field.name for field in model.batch_fields() if field.name != "image"]
        self._frequency_weights = frequency_weights(spec.frequency.quality)
        # Images of other patch sizes may not divide into blocks, which is an error if the loss
        # needs them.
        self._has_blocks = spec.weights.frequency > 0 or model.patch_size % DCT_BLOCK == 0

    def loss(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute the components with a weight above 0; `alignment` only if the batch holds
        `image_features`.

        Draws `time`, `noise` and `condition_dropout`, by which samples lose their text. Raises
        ValueError for images that do not divide into the frequency loss's blocks, and for features
        of other patches.
        """
        image = batch["image"]
        t = self._spec.time.draw(noise_source, len(image))
        noise = noise_source.normal("noise", image.shape)
        keep = noise_source.uniform("condition_dropout", t.shape) >= self._model.condition_dropout
        errors = self._errors(network, batch, t, noise, keep, self.active)
        if self.modules is not None and "alignment" not in errors:
            # ZeRO-3 would keep the last gradient of parameters that a backward pass skips, and
            # count it in the norm. It needs a forward pass, here of one patch, with a gradient of
            # 0.
            first = next(iter(errors))
            widths = (self._model.width, self._spec.alignment_width)
            tokens, features = (errors[first].new_zeros(1, 1, width) for width in widths)
            errors[first] = errors[first] + 0 * self.modules(tokens, features, num_rows=1)
        return errors

    def best_output(self, batch: Batch, noise_source: NoiseSource) -> Tensor:
        """Return data minus noise, or the image where that is predicted, (B, 3, H, W)."""
        image = batch["image"]
        if self._spec.prediction == "image":
            return image
        return image - noise_source.normal("noise", image.shape)

    @torch.no_grad()
    def metrics(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute the components, and `velocity_t0` (nearest to noise) .. `velocity_t3` by quarter
        of time.

        Every image is seen once in each quarter of [0.05, 0.95), with its text. `alignment` is
        included if its weight is above 0 and the batch holds `image_features`, `frequency` if
        images divide into its blocks. Costs four forward passes.
        """
        image = batch["image"]

        def errors(quarter: int) -> dict[str, Tensor]:
            t = EVALUATION_EPS + (1 - 2 * EVALUATION_EPS) * draw_times(
                noise_source, quarter, len(image)
            )
            noise = noise_source.normal(f"noise_t{quarter}", image.shape)
            return self._errors(network, batch, t, noise, None, self._measured(), by_sample=True)

        return mean_over_quarters(errors, "velocity")

    def metric_names(self) -> Sequence[str]:
        """Return the names of `metrics`."""
        return (*self._measured(), *quarter_names("velocity"))

    def retired_fields(self, step: int) -> Collection[str]:
        """Return `image_features` from step `alignment_until` on."""
        if self.modules is not None and step >= self._spec.alignment_until:
            return (IMAGE_FEATURES,)
        return ()

    def _measured(self) -> list[str]:
        """Components of `metrics`."""
        measured = ["velocity"]
        if self._has_blocks:
            measured.append("frequency")
        if self.modules is not None:
            measured.append("alignment")
        return [*measured, *self._others]

    def _errors(
        self,
        network: nn.Module,
        batch: Batch,
        t: Tensor,
        noise: Tensor,
        keep: Tensor | None,
        names: Iterable[str],
        by_sample: bool = False,
    ) -> dict[str, Tensor]:
        """Compute the network's errors at z_t by name, in float32 or better whatever the
        parameters' dtype.
        """
        self._spec.check_shapes(
            self._model, {name: tuple(values.shape[1:]) for name, values in batch.items()}
        )
        aligns = "alignment" in names and IMAGE_FEATURES in batch
        condition = {name: batch[name] for name in self._conditions}
        z_t = interpolate(batch["image"], noise, t, noise_at=0)
        tokens = None
        if aligns:
            output, tokens = network(z_t, t, condition, keep, self._spec.alignment_block)
        else:
            output = network(z_t, t, condition, keep, None)
        velocity: Tensor = widened(output)
        if self._spec.prediction == "image":
            velocity = point_velocity(z_t, per_sample(t, z_t), velocity, noise_at=0)
        target = velocity_target(batch["image"], noise, noise_at=0).to(velocity.dtype)
        errors = {}
        if "velocity" in names:
            velocity_error = velocity_errors if by_sample else functional.mse_loss
            errors["velocity"] = velocity_error(velocity, target)
        if "frequency" in names:
            errors["frequency"] = frequency_error(
                velocity, target, self._frequency_weights, by_sample
            )
        if tokens is not None:
            assert self.modules is not None
            num_rows = target.shape[2] // self._model.patch_size
            features = batch[IMAGE_FEATURES]
            errors["alignment"] = self.modules(tokens, features, num_rows, by_sample)
        for name, component in self._others.items():
            if name in names:
                errors[name] = component(velocity, target)
        return errors


class Alignment(nn.Module):
    """Projection of tokens to the encoder's width, and their distance from its features, a
    scalar.
    """

    def __init__(self, width: int, target_width: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(width, target_width, kernel_size=3, padding=1)

    def forward(
        self, tokens: Tensor, features: Tensor, num_rows: int, by_sample: bool = False
    ) -> Tensor:
        """Compute 1 - mean cosine of projected tokens and normalised features, in float32 or
        better: () or (B,).

        tokens (B, N, width), features (B, N, target_width), of images `num_rows` patches high.
        """
        grid = tokens.mT.unflatten(2, (num_rows, -1))  # (B, width, rows, columns)
        # (B, N, target_width)
        projected = self.projection(grid.to(self.projection.weight.dtype)).flatten(2).mT
        dtype = torch.promote_types(wide_dtype(projected), features.dtype)
        targets = normalise_features(features.to(dtype))
        cosines = functional.cosine_similarity(projected.to(dtype), targets, dim=-1)
        return 1 - (cosines.mean(1) if by_sample else cosines.mean())


def normalise_features(features: Tensor) -> Tensor:
    """Normalise features (B, N, D) to mean 0 and standard deviation 1 over an image's patches,
    channel by channel.
    """
    centred = features - features.mean(1, keepdim=True)
    return centred / (features.std(1, correction=0, keepdim=True) + EPS)
