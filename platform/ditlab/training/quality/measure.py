"""Sample quality against a run's own real data: distances on a small classifier's features, and copying."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ditlab.data.sources import DataSplits
from ditlab.data.view import View
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.training.quality.applies import unmeasurable
from ditlab.training.quality.distances import frechet_distance, kernel_distance, nearest_distances
from ditlab.training.quality.images import BATCH, RANGE, ImageFields, RealImages, batches, find_fields, real_images
from ditlab.training.quality.kept import classifier_of
from ditlab.training.quality.names import QUALITY_METRICS
from ditlab.training.quality.network import SmallClassifier

NUM_NEAREST = 500
"""Samples, and held-out images, whose nearest training image is looked for: a median needs no more."""


def ignore(*_: object) -> None:
    """Hears nothing."""


def quality(
    samples: Tensor,
    data: DataSplits,
    home: Home,
    device: torch.device | str = "cpu",
    warn: Callable[[str], None] = ignore,
) -> dict[str, float]:
    """The figures of `QUALITY_METRICS` for generated images (num, channels, height, width) in [-1, 1].

    Values beyond the range are clipped, as in pictures. All are NaN where a sample holds one. Trains the data set's
    classifier at its first use. `warn` hears of one that learned too little. For what they mean, see docs/quality.md.

    Raises:
        UserError: the data gives no such figures, or DITLAB_HOME cannot be written.
    """
    return Reference.open(data, tuple(samples.shape[1:]), home, device, warn).measure(samples)


@dataclass(frozen=True)
class Reference:
    """What samples of a data set are measured against. To be kept where several sets of samples are measured."""

    fields: ImageFields
    real: RealImages
    network: SmallClassifier
    features: Tensor
    """Of the reference images, (num, 64)."""
    nearest_held_out: float
    device: torch.device
    beat: Callable[[], None]

    @classmethod
    def open(
        cls,
        data: DataSplits,
        shape: tuple[int, ...],
        home: Home,
        device: torch.device | str = "cpu",
        warn: Callable[[str], None] = ignore,
        beat: Callable[[], None] = ignore,
    ) -> "Reference":
        """Of a data set with images (channels, height, width). `beat` is called all along. Raises as `quality` does."""
        if reason := unmeasurable(data, shape):
            raise UserError(f"sample quality cannot be measured, as {reason}; choose other data.")
        fields, real, device = find_fields(data.train.columns, shape), real_images(data), torch.device(device)
        assert fields is not None
        trained = classifier_of(data, real, fields, home, beat)
        if trained.learned_little:
            warn(
                f"quality figures say little on {data.train.origin}: the classifier they rest on names "
                f"{trained.accuracy:.0%} of the held-out images (always the same class: {trained.chance:.0%})."
            )
        network = trained.network.to(device)
        features = _features(network, _images(real.reference, fields, device), beat)
        first = torch.cat(list(_images(real.held_out, fields, device, NUM_NEAREST)))
        held_out = _nearest(first, _images(real.train, fields, device), beat)
        return cls(fields, real, network, features, held_out, device, beat)

    @torch.no_grad()
    def measure(self, samples: Tensor) -> dict[str, float]:
        """The figures of `QUALITY_METRICS`; at least 20 samples."""
        if samples.isnan().any():
            return dict.fromkeys(QUALITY_METRICS, float("nan"))
        samples = samples.to(self.device, torch.float32).clamp(*RANGE)
        features = _features(self.network, samples.split(BATCH), self.beat)
        kernel = kernel_distance(self.features, features)
        train = _images(self.real.train, self.fields, self.device)
        values = (
            frechet_distance(self.features, features),
            kernel.value,
            kernel.standard_error,
            _nearest(samples[:NUM_NEAREST], train, self.beat),
            self.nearest_held_out,
        )
        return dict(zip(QUALITY_METRICS, values, strict=True))


def _images(view: View, fields: ImageFields, device: torch.device, num: int | None = None) -> Iterable[Tensor]:
    return (images for images, _ in batches(view, fields, device, num))


@torch.no_grad()
def _features(network: SmallClassifier, images: Iterable[Tensor], beat: Callable[[], None]) -> Tensor:
    parts = []
    for batch in images:
        # Not TensorFloat-32, whose features would be a thousandth off those of a CPU.
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            parts.append(network.features(batch))
        beat()
    return torch.cat(parts)


def _nearest(samples: Tensor, reference: Iterable[Tensor], beat: Callable[[], None]) -> float:
    """Median over samples of the root mean square difference of values to the nearest image of the reference."""
    distances = []
    for images in reference:
        distances.append(nearest_distances(samples.flatten(1), images.flatten(1)))
        beat()
    return float(torch.stack(distances).amin(0).median()) / prod(samples.shape[1:]) ** 0.5
