"""What images are compared by: features of them, and distances between the features' distributions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ditlab.quality.distances import frechet_distance, kernel_distance
from ditlab.quality.network import SmallClassifier

Extractor = Callable[[Iterable[Tensor]], Tensor]
"""Batches of images in [-1, 1] to their features, (num, width)."""


@dataclass(frozen=True)
class FeatureSpace:
    """A kind of features, and those of the reference images."""

    names: tuple[str, str, str]
    """Of the figures: Frechet distance, kernel distance, its standard error."""
    extract: Extractor
    real: Tensor
    """Of the reference images, (num, width), scaled."""
    scale: float = 1.0
    """What features are multiplied by, so that their mean square over reference images is 1."""

    def distances(self, images: Iterable[Tensor]) -> dict[str, float]:
        """The figures of generated images, given in batches; at least 20."""
        generated = self.scale * self.extract(images)
        kernel = kernel_distance(self.real, generated)
        values = frechet_distance(self.real, generated), kernel.value, kernel.standard_error
        return dict(zip(self.names, values, strict=True))

    @classmethod
    def scaled(cls, names: tuple[str, str, str], extract: Extractor, reference: Iterable[Tensor]) -> "FeatureSpace":
        """Of features of any size, and reference images given in batches."""
        real = extract(reference)
        scale = float((real.square().mean() + 1e-12).rsqrt())
        return cls(names, extract, scale * real, scale)


def classifier_features(network: SmallClassifier, beat: Callable[[], None]) -> Extractor:
    """Those of the layer before the last. `beat` is called after each batch."""
    return lambda images: through(network.features, images, beat)


@torch.no_grad()
def through(layer: Callable[[Tensor], Tensor], images: Iterable[Tensor], beat: Callable[[], None]) -> Tensor:
    """What a classifier's layer gives for batches of images, in one tensor."""
    parts = []
    for batch in images:
        # Not TensorFloat-32, whose features would be a thousandth off those of a CPU.
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            parts.append(layer(batch))
        beat()
    return torch.cat(parts)
