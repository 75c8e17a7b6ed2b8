"""PixelHDM's losses: the velocity, the velocity by frequency, and alignment with a frozen encoder (REPA).

z_t = t x + (1 - t) eps with the image x at t = 1 and noise eps at t = 0; v = x - eps. B batch, N patches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from denoisers.contract import NoiseSource
from denoisers.figure_makers import FigureDrawer, FigureMaker
from denoisers.pixelhdm.alignment import Alignment
from denoisers.pixelhdm.figures import FIGURES, draw_frequency_weights
from denoisers.pixelhdm.spec import IMAGE_FEATURES, PixelHDMObjectiveSpec, PixelHDMSpec
from denoisers.processes.flow.frequency_loss import frequency_error, frequency_weights
from denoisers.processes.flow.linear_path import interpolate, point_velocity, velocity_target
from denoisers.processes.flow.spec import DCT_BLOCK

EVALUATION_EPS = 0.05
"""Held-out times keep this far from 0 and 1, whatever the training's: they are those that samples go through."""
NUM_QUARTERS = 4
QUARTERS = tuple(f"velocity_t{quarter}" for quarter in range(NUM_QUARTERS))


class Noised(NamedTuple):
    """Images on their way from noise."""

    t: Tensor
    """(B,)."""
    z_t: Tensor
    """(B, 3, H, W)."""
    velocity: Tensor
    """What the network should find: (B, 3, H, W)."""


class PixelHDMObjective(FigureDrawer):
    """Trains `network(z_t, t, condition, ...)` to predict x - eps, or x."""

    def __init__(self, spec: PixelHDMObjectiveSpec, model: PixelHDMSpec) -> None:
        self.weights: dict[str, float] = spec.weights.model_dump()
        aligns = spec.weights.alignment > 0
        self.modules: nn.Module | None = Alignment(model.width, spec.alignment_width) if aligns else None
        self.figure_makers: dict[str, FigureMaker] = {
            **FIGURES,
            "frequency_weights": partial(draw_frequency_weights, quality=spec.frequency.quality),
        }
        self._spec, self._model = spec, model
        self._conditions = [field.name for field in model.batch_fields() if field.name != "image"]
        self._frequency_weights = frequency_weights(spec.frequency.quality)
        # Other sides may be no whole blocks, which is an error where the loss needs them.
        self._has_blocks = spec.weights.frequency > 0 or model.patch_size % DCT_BLOCK == 0

    def loss(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Components with a weight above 0; `alignment` only where the batch holds `image_features`.

        Draws `time`, `noise` and `condition_dropout`, under which a sample loses its text.

        Raises:
            ValueError: images that do not divide into the frequency loss's blocks; features of other patches.
        """
        image = batch["image"]
        t = self._spec.time.draw(noise_source, len(image))
        noised = _noise(image, noise_source.normal("noise", image.shape), t)
        keep = noise_source.uniform("condition_dropout", t.shape) >= self._model.condition_dropout
        active = [name for name, weight in self.weights.items() if weight > 0]
        errors = self._errors(network, batch, noised, keep, active)
        if self.modules is not None and "alignment" not in errors:
            some = next(iter(errors))
            errors[some] = errors[some] + self._idle(errors[some])
        return errors

    @torch.no_grad()
    def metrics(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """The components, and `velocity_t0` (nearest to noise) .. `velocity_t3` (to the image) by quarter of time.

        Every image is seen once in each quarter of [0.05, 0.95), so every figure is a mean over the whole batch,
        whatever its size; no text is dropped. `alignment` is there where its weight is above 0 and the batch holds
        `image_features`, `frequency` where images divide into its blocks. Costs four forward passes.
        """
        image = batch["image"]
        quarters = []
        for quarter in range(NUM_QUARTERS):
            uniform = noise_source.uniform(f"time_t{quarter}", (len(image),))
            t = EVALUATION_EPS + (1 - 2 * EVALUATION_EPS) * (quarter + uniform) / NUM_QUARTERS
            noised = _noise(image, noise_source.normal(f"noise_t{quarter}", image.shape), t)
            quarters.append(self._errors(network, batch, noised, None, self._measured()))
        means = {name: torch.stack([errors[name] for errors in quarters]).mean() for name in quarters[0]}
        return means | {name: errors["velocity"] for name, errors in zip(QUARTERS, quarters, strict=True)}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        return dict(means)

    def metric_names(self) -> Sequence[str]:
        return (*self._measured(), *QUARTERS)

    def retired_fields(self, step: int) -> Collection[str]:
        """`image_features` from step `alignment_until` on."""
        return (IMAGE_FEATURES,) if self.modules is not None and step >= self._spec.alignment_until else ()

    def _measured(self) -> list[str]:
        measured = {"velocity": True, "frequency": self._has_blocks, "alignment": self.modules is not None}
        return [name for name, is_measured in measured.items() if is_measured]

    def _errors(
        self,
        network: nn.Module,
        batch: Mapping[str, Tensor],
        noised: Noised,
        keep: Tensor | None,
        names: Iterable[str],
    ) -> dict[str, Tensor]:
        """Errors of the network at z_t by name, in float32 or better whatever the parameters' dtype."""
        self._spec.check_shapes(self._model, {name: tuple(values.shape[1:]) for name, values in batch.items()})
        aligns = "alignment" in names and IMAGE_FEATURES in batch
        condition = {name: batch[name] for name in self._conditions}
        found = network(noised.z_t, noised.t, condition, keep, self._spec.alignment_block if aligns else None)
        velocity = self._velocity(found.output if aligns else found, noised)
        target = noised.velocity.to(velocity.dtype)
        errors = {}
        if "velocity" in names:
            errors["velocity"] = functional.mse_loss(velocity, target)
        if "frequency" in names:
            errors["frequency"] = frequency_error(velocity, target, self._frequency_weights)
        if aligns:
            assert self.modules is not None
            num_rows = target.shape[2] // self._model.patch_size
            errors["alignment"] = self.modules(found.features, batch[IMAGE_FEATURES], num_rows)
        return errors

    def _velocity(self, output: Tensor, noised: Noised) -> Tensor:
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        if self._spec.prediction == "velocity":
            return output
        return point_velocity(noised.z_t, noised.t.view(-1, 1, 1, 1), output, noise_at=0)

    def _idle(self, like: Tensor) -> Tensor:
        """0, with a gradient of 0 for the alignment's parameters, on the device of `like`.

        ZeRO-3 would go on with the last gradient of parameters that a backward pass leaves out, and count it in the
        norm. It needs to see a forward pass, of one patch here.
        """
        assert self.modules is not None
        tokens, features = (like.new_zeros(1, 1, each) for each in (self._model.width, self._spec.alignment_width))
        nothing: Tensor = 0 * self.modules(tokens, features, num_rows=1)
        return nothing


def _noise(image: Tensor, noise: Tensor, t: Tensor) -> Noised:
    return Noised(t, interpolate(image, noise, t, noise_at=0), velocity_target(image, noise, noise_at=0))
