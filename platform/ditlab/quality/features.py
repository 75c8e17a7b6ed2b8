"""Feature spaces: features of images, and distances between the distributions of features."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ditlab.quality.distances import frechet_distance, kernel_distance
from ditlab.quality.network import SmallClassifier

Extractor = Callable[[Iterable[Tensor]], Tensor]
"""Maps batches of images in [-1, 1] to their features, (num, width)."""


@dataclass(frozen=True)
class FeatureSpace:
    """Feature extractor with the features of the reference images."""

    names: tuple[str, str, str]
    """Names of the metrics: Frechet distance, kernel distance, its standard error."""
    extract: Extractor
    real: Tensor
    """Features of the reference images, (num, width), scaled."""
    scale: float = 1.0
    """Factor on features that makes their mean square over reference images 1."""

    def distances(self, images: Iterable[Tensor]) -> dict[str, float]:
        """Return the distances of generated images, given in batches; at least 20 images."""
        generated = self.scale * self.extract(images)
        kernel = kernel_distance(self.real, generated)
        values = frechet_distance(self.real, generated), kernel.value, kernel.standard_error
        return dict(zip(self.names, values, strict=True))

    @classmethod
    def scaled(cls, names: tuple[str, str, str], extract: Extractor, reference: Iterable[Tensor]) -> "FeatureSpace":
        """Compute the scale and the reference features from reference images, given in batches."""
        real = extract(reference)
        scale = float((real.square().mean() + 1e-12).rsqrt())
        return cls(names, extract, scale * real, scale)


def classifier_features(network: SmallClassifier, tick: Callable[[], None]) -> Extractor:
    """Return an extractor of the features of the layer before the last; calls `tick` after each batch."""
    return lambda images: apply_batched(network.features, images, tick)


@torch.no_grad()
def apply_batched(layer: Callable[[Tensor], Tensor], images: Iterable[Tensor], tick: Callable[[], None]) -> Tensor:
    """Apply a classifier's layer to batches of images; return one tensor."""
    parts = []
    for batch in images:
        # Not TensorFloat-32, whose features would be a thousandth off those of a CPU.
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            parts.append(layer(batch))
        tick()
    return torch.cat(parts)
