"""Sample quality against a run's own real data: distances between features, copying, caption agreement."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.quality.agreement import Classes, Judge
from ditlab.quality.basis import SIZES, Basis, find_basis
from ditlab.quality.classifier import Trained
from ditlab.quality.classifier_cache import classifier_of
from ditlab.quality.distances import nearest_distances
from ditlab.quality.features import FeatureSpace, classifier_features
from ditlab.quality.images import RANGE, RealImages, at_once, image_batches, real_images
from ditlab.quality.names import CLASSIFIER_DISTANCES, ENCODER_DISTANCES, NEAREST

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
    asked: Classes | None = None,
) -> dict[str, float]:
    """The quality figures of generated images (num, channels, height, width) in [-1, 1], by name.

    Those of `QUALITY_METRICS`; of caption agreement, too, where `asked` says which classes each sample was to show, by
    column. Values beyond the range are clipped, as in pictures. All are NaN where a sample holds one. Trains the data
    set's classifier at its first use. `warn` hears of one that learned too little. For what they mean, see
    docs/quality.md.

    Raises:
        UserError: the data gives no such figures, or DITLAB_HOME cannot be written.
    """
    basis = find_basis(data, tuple(samples.shape[1:]))
    if isinstance(basis, str):
        raise UserError(f"sample quality cannot be measured, as {basis}; choose other data.")
    return Reference.open(basis, home, device, warn, from_captions=bool(asked)).measure(samples, asked)


@dataclass(frozen=True)
class Reference:
    """What samples of a data set are measured against. To be kept where several sets of samples are measured."""

    basis: Basis
    real: RealImages
    spaces: tuple[FeatureSpace, ...]
    judge: Judge | None
    """Of samples that are drawn from captions."""
    nearest_held_out: float
    device: torch.device
    beat: Callable[[], None]

    @classmethod
    def open(
        cls,
        basis: Basis,
        home: Home,
        device: torch.device | str = "cpu",
        warn: Callable[[str], None] = ignore,
        beat: Callable[[], None] = ignore,
        from_captions: bool = False,
    ) -> "Reference":
        """`from_captions`: whether agreement is measured. `beat` is called all along. Raises as `quality` does."""
        real, device = real_images(basis.data), torch.device(device)
        classifiers = _classifiers(basis, real, home, device, warn, beat, from_captions)
        spaces = []
        for trained in list(classifiers.values())[:1]:
            features = classifier_features(trained.network, beat)  # scaled when it was trained
            compared = features(image_batches(real.reference, basis.image, device))
            spaces.append(FeatureSpace(CLASSIFIER_DISTANCES, features, compared))
        if basis.encoder is not None:
            features = basis.encoder.features(device, beat)
            reference = image_batches(real.reference, basis.image, device)
            spaces.append(FeatureSpace.scaled(ENCODER_DISTANCES, features, reference))
        judged = from_captions and classifiers
        judge = Judge.open(classifiers, basis.classes, real.held_out, device, beat) if judged else None
        first = torch.cat(list(image_batches(real.held_out, basis.image, device, NUM_NEAREST)))
        held_out = _nearest(first, image_batches(real.train, basis.image, device), beat)
        return cls(basis, real, tuple(spaces), judge, held_out, device, beat)

    @torch.no_grad()
    def measure(self, samples: Tensor, asked: Classes | None = None) -> dict[str, float]:
        """The figures of `Basis.metrics`; at least 20 samples. `asked`: as `quality` has it."""
        agrees = self.judge is not None and bool(asked)
        if samples.isnan().any():
            return dict.fromkeys(self.basis.metrics(agrees), float("nan"))
        samples = self._ready(samples)
        images = samples.split(at_once(samples.shape[1:]))
        train = image_batches(self.real.train, self.basis.image, self.device)
        nearest = _nearest(samples[:NUM_NEAREST], train, self.beat), self.nearest_held_out
        found = dict(zip(NEAREST, nearest, strict=True))
        for space in self.spaces:
            found |= space.distances(images)
        if self.judge is not None and asked:
            found |= self.judge.metrics(asked, self.judge.recognise(images))
        return {name: found[name] for name in self.basis.metrics(agrees)}

    def recognise(self, samples: Tensor) -> dict[str, Tensor]:
        """What samples show, by column of classes; where agreement is measured."""
        assert self.judge is not None, "opened without agreement"
        samples = self._ready(samples)
        return self.judge.recognise(samples.split(at_once(samples.shape[1:])))

    def _ready(self, samples: Tensor) -> Tensor:
        return samples.to(self.device, torch.float32).clamp(*RANGE)


def _classifiers(
    basis: Basis,
    real: RealImages,
    home: Home,
    device: torch.device,
    warn: Callable[[str], None],
    beat: Callable[[], None],
    every: bool,
) -> dict[str, Trained]:
    """By column of classes: of the first one, or of every one."""
    found = {}
    for fields in basis.classes if every else basis.classes[:1]:
        trained = classifier_of(basis.data, real, fields, home, beat)
        if trained.learned_little:
            warn(
                f"quality figures say little on {basis.data.train.origin}: the classifier of {fields.label.name} that "
                f"they rest on names {trained.accuracy:.0%} of the held-out images (always the same class: "
                f"{trained.chance:.0%})."
            )
        trained.network.to(device)
        found[fields.label.name] = trained
    return found


def _nearest(samples: Tensor, reference: Iterable[Tensor], beat: Callable[[], None]) -> float:
    """Median over samples of the root mean square difference of values to the nearest image of the reference."""
    samples = _small(samples)
    distances = []
    for images in reference:
        distances.append(nearest_distances(samples.flatten(1), _small(images).flatten(1)))
        beat()
    return float(torch.stack(distances).amin(0).median()) / prod(samples.shape[1:]) ** 0.5


def _small(images: Tensor) -> Tensor:
    """Averaged to 64 pixels a side where they have more: whole ones would take 6 MB of memory a sample at 1,024."""
    height, width = (min(side, SIZES[-1]) for side in images.shape[2:])
    return images if images.shape[2:] == (height, width) else nn.functional.adaptive_avg_pool2d(images, (height, width))
