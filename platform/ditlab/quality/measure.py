"""Measurement of sample quality against real data: feature distances, copying, caption agreement.

Caption agreement is the share of samples that show the classes that their captions name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from denoisers.figures import Figure, Heatmap
from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.encoders.checkpoint import encoder_digest
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import ignore
from ditlab.quality.classifier import TrainedClassifier, cached_classifier
from ditlab.quality.eligibility import (
    AGREEMENT,
    AGREEMENT_CHANCE,
    AGREEMENT_REAL,
    CLASSIFIER_DISTANCES,
    ENCODER_DISTANCES,
    NEAREST,
    SIZES,
    QualityBasis,
    agreement_of,
    find_basis,
)
from ditlab.quality.features import FeatureSpace, apply_batched, classifier_features, nearest_distances
from ditlab.quality.images import (
    LARGEST_REFERENCE,
    RANGE,
    ImageFields,
    RealImages,
    image_batches,
    images_per_batch,
    real_images,
)

Classes = Mapping[str, Tensor]
"""Class indices of some images by column, int64 (num,) each."""
NUM_NEAREST = 500
"""Samples, and held-out images, whose nearest training image is searched: a median needs no more."""


def quality(
    samples: Tensor,
    data: DataSplits,
    home: Home,
    device: torch.device | str = "cpu",
    warn: Callable[[str], None] = ignore,
    expected: Classes | None = None,
) -> dict[str, float]:
    """Measure the quality of generated images (num, channels, height, width) in [-1, 1]; return metrics by name.

    The metrics are those of `QUALITY_METRICS`, and those of caption agreement if `expected` gives the classes that each
    sample should show, by column. Values beyond the range are clipped, as in pictures. All are NaN where a sample holds
    one. Trains the data set's classifier at its first use, and warns of one that learned too little. For the meaning of
    the metrics, see docs/quality.md.

    Raises:
        UserError: the data give no such metrics, or DITLAB_HOME cannot be written.
    """
    basis = find_basis(data, tuple(samples.shape[1:]))
    if isinstance(basis, str):
        raise UserError(f"sample quality cannot be measured, as {basis}; choose other data.")
    return QualityReference.open(basis, home, device, warn, from_captions=bool(expected)).measure(samples, expected)


@dataclass(frozen=True)
class QualityReference:
    """Reference that samples of a data set are measured against, reusable for several sets of samples."""

    basis: QualityBasis
    real: RealImages
    spaces: tuple[FeatureSpace, ...]
    agreement: CaptionAgreement | None
    """Agreement of samples that are drawn from captions."""
    nearest_held_out: float
    device: torch.device
    tick: Callable[[], None]
    features: str
    """Digest of the networks whose features and classes are compared."""

    @classmethod
    def open(
        cls,
        basis: QualityBasis,
        home: Home,
        device: torch.device | str = "cpu",
        warn: Callable[[str], None] = ignore,
        tick: Callable[[], None] = ignore,
        from_captions: bool = False,
    ) -> QualityReference:
        """Compute the reference, with agreement if `from_captions`. Calls `tick` often; raises as `quality` does."""
        real, device = real_images(basis.data), torch.device(device)
        classifiers = _classifiers(basis, real, home, device, warn, tick, from_captions)
        spaces = []
        for trained in list(classifiers.values())[:1]:
            features = classifier_features(trained.network, tick)  # scaled when it was trained
            compared = features(image_batches(real.reference, basis.image, device))
            spaces.append(FeatureSpace(CLASSIFIER_DISTANCES, features, compared))
        if basis.encoder is not None:
            features = basis.encoder.features(device, tick)
            reference = image_batches(real.reference, basis.image, device)
            spaces.append(FeatureSpace.scaled(ENCODER_DISTANCES, features, reference))
        judged = from_captions and classifiers
        agreement = CaptionAgreement.open(classifiers, basis.classes, real.held_out, device, tick) if judged else None
        first = torch.cat(list(image_batches(real.held_out, basis.image, device, NUM_NEAREST)))
        held_out = _nearest(first, image_batches(real.train, basis.image, device), tick)
        digest = _features_digest(basis, list(classifiers.values()))
        return cls(basis, real, tuple(spaces), agreement, held_out, device, tick, digest)

    @torch.no_grad()
    def measure(self, samples: Tensor, expected: Classes | None = None) -> dict[str, float]:
        """Return the metrics of `QualityBasis.metrics` for at least 20 samples, as `quality` does."""
        agrees = self.agreement is not None and bool(expected)
        if samples.isnan().any():
            return dict.fromkeys(self.basis.metrics(agrees), float("nan"))
        samples = self._ready(samples)
        images = samples.split(images_per_batch(samples.shape[1:]))
        train = image_batches(self.real.train, self.basis.image, self.device)
        nearest = _nearest(samples[:NUM_NEAREST], train, self.tick), self.nearest_held_out
        found = dict(zip(NEAREST, nearest, strict=True))
        for space in self.spaces:
            found |= space.distances(images)
        if self.agreement is not None and expected:
            found |= self.agreement.metrics(expected, self.agreement.recognise(images))
        return {name: found[name] for name in self.basis.metrics(agrees)}

    def recognise(self, samples: Tensor) -> dict[str, Tensor]:
        """Return the recognised classes of samples, by column; only where agreement is measured."""
        assert self.agreement is not None, "opened without agreement"
        samples = self._ready(samples)
        return self.agreement.recognise(samples.split(images_per_batch(samples.shape[1:])))

    def _ready(self, samples: Tensor) -> Tensor:
        return samples.to(self.device, torch.float32).clamp(*RANGE)


def _classifiers(
    basis: QualityBasis,
    real: RealImages,
    home: Home,
    device: torch.device,
    warn: Callable[[str], None],
    tick: Callable[[], None],
    every: bool,
) -> dict[str, TrainedClassifier]:
    """Return classifiers by column of classes: of the first column, or of `every` one."""
    found = {}
    for fields in basis.classes if every else basis.classes[:1]:
        trained = cached_classifier(basis.data, real, fields, home, tick)
        if trained.learned_little:
            warn(
                f"quality metrics say little on {basis.data.train.origin}: the classifier of {fields.label.name} that "
                f"they rest on recognises {trained.accuracy:.0%} of the held-out images (always the same class: "
                f"{trained.chance:.0%})."
            )
        trained.network.to(device)
        found[fields.label.name] = trained
    return found


def _features_digest(basis: QualityBasis, classifiers: list[TrainedClassifier]) -> str:
    digest = hashlib.sha256()
    for trained in classifiers:
        digest.update(save({name: value.cpu() for name, value in trained.network.state_dict().items()}))
    if basis.encoder is not None:
        digest.update(encoder_digest(basis.encoder.place, str(basis.encoder.dtype)).encode())
    return digest.hexdigest()


def _nearest(samples: Tensor, reference: Iterable[Tensor], tick: Callable[[], None]) -> float:
    """Return the median over samples of the root mean square difference to the nearest image of the reference."""
    samples = _small(samples)
    distances = []
    for images in reference:
        distances.append(nearest_distances(samples.flatten(1), _small(images).flatten(1)))
        tick()
    return float(torch.stack(distances).amin(0).median()) / prod(samples.shape[1:]) ** 0.5


def _small(images: Tensor) -> Tensor:
    """Average images to 64 pixels a side where they have more: whole ones would take 6 MB a sample at 1,024 pixels."""
    height, width = (min(side, SIZES[-1]) for side in images.shape[2:])
    return images if images.shape[2:] == (height, width) else nn.functional.adaptive_avg_pool2d(images, (height, width))


@dataclass(frozen=True)
class CaptionAgreement:
    """Classifiers of a data set's images, one a column of classes, and their accuracy on real images."""

    classifiers: Mapping[str, TrainedClassifier]
    """Classifiers by column."""
    real: float
    """Share of held-out images of which they recognise all classes."""
    tick: Callable[[], None]
    """Called after each batch."""

    @classmethod
    def open(
        cls,
        classifiers: Mapping[str, TrainedClassifier],
        fields: Sequence[ImageFields],
        held_out: View,
        device: torch.device,
        tick: Callable[[], None],
    ) -> CaptionAgreement:
        """Measure the classifiers on at most 5,000 held-out images; `fields` are of the same columns."""
        images = list(image_batches(held_out, fields[0].image, device, LARGEST_REFERENCE))
        seen = _recognised(classifiers, images, tick)
        rows = np.arange(min(len(held_out), LARGEST_REFERENCE))
        return cls(classifiers, _all_right(classes_of(held_out, fields, rows), seen), tick)

    def recognise(self, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the classes of images given in batches, on the CPU."""
        return _recognised(self.classifiers, images, self.tick)

    def metrics(self, expected: Classes, recognised: Classes) -> dict[str, float]:
        """Return the metrics of `eligibility.agreement_names` from the expected and the recognised classes."""
        return {
            AGREEMENT: _all_right(expected, recognised),
            **{agreement_of(name): _share(expected[name] == recognised[name]) for name in self.classifiers},
            AGREEMENT_REAL: self.real,
            AGREEMENT_CHANCE: prod(trained.chance for trained in self.classifiers.values()),
        }


def classes_of(view: View, fields: Sequence[ImageFields], indices: np.ndarray) -> dict[str, Tensor]:
    """Return the classes of a view's rows at `indices`."""
    names = [each.label.name for each in fields]
    return {name: view.gather(name, indices).long() for name in names}


def confusion_figure(expected: Classes, recognised: Classes, names: Mapping[str, Sequence[str]]) -> Figure:
    """Draw the confusion matrix of each column: the expected class against the recognised one.

    `names` are those of the classes by column, as many as there are classes. A class that no caption named stays blank.
    """
    panels, agreements = [], []
    for column, classes in names.items():
        counts = np.zeros((len(classes), len(classes)))
        np.add.at(counts, (expected[column].numpy(), recognised[column].numpy()), 1)
        with np.errstate(invalid="ignore"):
            shares = counts / counts.sum(1, keepdims=True)
        right = _share(expected[column] == recognised[column])
        agreements.append(f"{column}: {right:.1%} of {len(expected[column])} samples agree")
        panels.append(
            Heatmap(
                shares, title=agreements[-1], x_label="recognised",
                y_label="expected", limits=(0.0, 1.0), x_names=classes, y_names=classes,
            )
        )  # fmt: skip
    alt = (
        "Confusion matrices, expected class by recognised class; shares on the diagonal are of samples that show what "
        f"their captions name. {'; '.join(agreements)}."
    )
    return Figure(panels, title="Caption agreement: share of the samples of each expected class", alt=alt)


def _recognised(
    classifiers: Mapping[str, TrainedClassifier], images: Sequence[Tensor], tick: Callable[[], None]
) -> dict[str, Tensor]:
    return {name: apply_batched(each.network, images, tick).argmax(1).cpu() for name, each in classifiers.items()}


def _all_right(expected: Classes, recognised: Classes) -> float:
    """Return the share of samples whose classes are right in every column."""
    return _share(torch.stack([expected[name] == recognised[name] for name in expected]).all(0))


def _share(right: Tensor) -> float:
    return float(right.double().mean())
