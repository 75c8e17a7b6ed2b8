"""Image families trained by flow matching, and perhaps under the Gaussian process. Imports torch
only inside its methods."""

from __future__ import annotations

from typing import Any, TypeVar

from ditlab_models.contract import Family, Sampler, TextCodec
from ditlab_models.processes.specs import (
    FlowSamplingSpec,
    GaussianSamplingSpec,
    GaussianSpec,
    ImageModelSpec,
    VelocitySpec,
)

ImageModelT = TypeVar("ImageModelT", bound=ImageModelSpec)
ImageObjectiveT = TypeVar("ImageObjectiveT", bound=VelocitySpec | GaussianSpec)
ImageSamplingT = TypeVar("ImageSamplingT", bound=FlowSamplingSpec | GaussianSamplingSpec)


class FlowFamily(Family[ImageModelT, ImageObjectiveT, ImageSamplingT]):
    """Base of the families whose network maps an image, a time and perhaps a class to a velocity.

    One that names the Gaussian process in `processes` predicts the noise instead where a spec
    chooses it.
    """

    def build_sampler(
        self,
        sampling: ImageSamplingT,
        model: ImageModelT,
        objective: ImageObjectiveT,
        text: TextCodec | None = None,
    ) -> Sampler:
        """Build the sampler of images from noise. Raises ValueError for guidance that the model has
        not learned.
        """
        from ditlab_models.processes.flow_sampling import FlowSampler
        from ditlab_models.processes.noise_prediction import GaussianSampler

        sampling.check(model, objective)
        if isinstance(sampling, GaussianSamplingSpec):
            assert isinstance(objective, GaussianSpec)
            return GaussianSampler(sampling, objective, model.image_shape, model.num_classes)
        return FlowSampler(sampling, model.image_shape, model.num_classes)

    def example_inputs(
        self, model: ImageModelT, batch_size: int, device: str = "meta"
    ) -> tuple[Any, ...]:
        """Return zeros: x (batch, channels, size, size), t (batch,) and, for a conditional model,
        label (batch,).
        """
        import torch

        x = torch.zeros(batch_size, *model.image_shape, device=device)
        t = torch.zeros(batch_size, device=device)
        if model.num_classes is None:
            return (x, t)
        return (x, t, torch.zeros(batch_size, dtype=torch.int64, device=device))
