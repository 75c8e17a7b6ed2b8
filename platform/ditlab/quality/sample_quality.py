"""Evaluator of sample quality against real data: feature distances, copying, caption agreement.

The reference of a data set measures samples; the evaluator of an experiment draws them, with the
same noise each time.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from ditlab.data.images.captions import decode_captions
from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.encoders.checkpoint import encoder_digest
from ditlab.engine.memory import kept_memory
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.conditions import SampleConditions, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress, ignore, ignore_progress
from ditlab.quality.classifier import TrainedClassifier, cached_classifier
from ditlab.quality.eligibility import (
    AGREEMENT,
    AGREEMENT_CHANCE,
    AGREEMENT_REAL,
    CAPTIONS,
    CLASSIFIER_DISTANCES,
    ENCODER_DISTANCES,
    NEAREST,
    SIZES,
    QualityBasis,
    find_basis,
    quality_basis,
    quality_sampler,
)
from ditlab.quality.features import FeatureSpace, apply_batched, nearest_distances
from ditlab.quality.figures import ComparedSamples
from ditlab.quality.images import (
    LARGEST_REFERENCE,
    RANGE,
    ImageFields,
    image_batches,
    images_per_batch,
    real_images,
)
from ditlab.quality.measurement import quality_measurement
from ditlab.receipts.records import Measurement
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import Samples
from ditlab_models.intervals import share_estimate
from ditlab_models.pixels import num_not_finite
from ditlab_models.processes.draws import draw_samples

Classes = Mapping[str, Tensor]
"""Class indices of some images by column, int64 (num,) each."""
NUM_NEAREST = 500
"""Samples, and held-out images, whose nearest training image is searched: a median needs no
more.
"""
FIRST_BATCH = "drawing the first batch of samples"
BATCHES = "drawing samples"


def quality(
    samples: Tensor,
    data: DataSplits,
    home: Home,
    device: torch.device | str = "cpu",
    warn: Callable[[str], None] = ignore,
    expected: Classes | None = None,
) -> dict[str, float]:
    """Measure the quality of generated images (num, channels, height, width) in [-1, 1]; return
    metrics by name.

    The metrics (docs/quality.md) are those of `QUALITY_METRICS`, and of caption agreement if
    `expected` gives the classes that each sample should show, by column. Values beyond the range
    are clipped. All are NaN where a sample holds one. Trains the data set's classifier at its first
    use, and warns of one that learned too little. Raises UserError for data that give no such
    metrics, and where DITLAB_HOME cannot be written.
    """
    basis = find_basis(data, tuple(samples.shape[1:]))
    if isinstance(basis, str):
        raise UserError(f"sample quality cannot be measured, as {basis}; choose other data.")
    return QualityReference(basis, home, device, warn, from_captions=bool(expected)).measure(
        samples, expected
    )


class QualityReference:
    """Reference that samples of a data set are measured against, reusable for several sets of
    samples.
    """

    def __init__(
        self,
        basis: QualityBasis,
        home: Home,
        device: torch.device | str = "cpu",
        warn: Callable[[str], None] = ignore,
        tick: Callable[[], None] = ignore,
        from_captions: bool = False,
    ) -> None:
        """Compute the reference, with agreement if `from_captions`. Calls `tick` often; raises as
        `quality` does.
        """
        self.basis = basis
        self.device = torch.device(device)
        self.tick = tick
        self.real = real = real_images(basis.data)
        self.classifiers: dict[str, TrainedClassifier] = {}
        """Classifiers by column of classes: all where agreement with captions is measured, else
        that of the first.
        """
        for fields in basis.classes if from_captions else basis.classes[:1]:
            trained = cached_classifier(basis.data, real, fields, home, tick)
            if trained.accuracy < trained.chance + 0.25 * (1 - trained.chance):
                warn(
                    f"quality metrics say little on {basis.data.train.origin}: the classifier "
                    f"of {fields.label.name} that they rest on recognises "
                    f"{trained.accuracy:.0%} of the held-out images (always the same class: "
                    f"{trained.chance:.0%})."
                )
            trained.network.to(self.device)
            self.classifiers[fields.label.name] = trained
        self.spaces: list[FeatureSpace] = []
        for trained in list(self.classifiers.values())[:1]:
            # scaled when it was trained
            extract = partial(apply_batched, trained.network.features, tick=tick)
            compared = extract(images=self._images(real.reference))
            self.spaces.append(FeatureSpace(CLASSIFIER_DISTANCES, extract, compared))
        if basis.encoder is not None:
            features = partial(basis.encoder.features, self.device, tick)
            compared = features(self._images(real.reference))
            scale = float((compared.square().mean() + 1e-12).rsqrt())
            self.spaces.append(FeatureSpace(ENCODER_DISTANCES, features, scale * compared, scale))
        self.warn = warn
        self.agreement_real: float | None = None
        """Share of held-out images of which the classifiers recognise all classes; None where none
        is measured.
        """
        if from_captions and self.classifiers:
            images = list(self._images(real.held_out, LARGEST_REFERENCE))
            expected = classes_of(real.held_out, basis.classes, np.arange(sum(map(len, images))))
            recognised = recognised_classes(self.classifiers, images, tick)
            self.agreement_real = float(_all_right(expected, recognised).double().mean())
        first = torch.cat(list(self._images(real.held_out, NUM_NEAREST)))
        self.nearest_held_out = _nearest(first, self._images(real.train), tick)

    @torch.no_grad()
    def measure(
        self, samples: Tensor, expected: Classes | None = None, captions: Sequence[str] = ()
    ) -> dict[str, float]:
        """Return the metrics of `QualityBasis.metrics` for at least 20 samples, as `quality` does;
        `captions`: texts that samples were drawn from, for figures of captions."""
        agrees = self.agreement_real is not None and bool(expected)
        if num_not_finite(samples):
            return dict.fromkeys(self.basis.metrics(agrees, bool(captions)), float("nan"))
        ready = samples.to(self.device, torch.float32).clamp(*RANGE)
        images = ready.split(images_per_batch(ready.shape[1:]))
        real = partial(self._images, self.real.train)
        nearest = _nearest(ready[:NUM_NEAREST], real(), self.tick), self.nearest_held_out
        found = dict(zip(NEAREST, nearest, strict=True))
        for space in self.spaces:
            found |= space.distances(images)
        if self.agreement_real is not None and expected:
            recognised = recognised_classes(self.classifiers, images, self.tick)
            found |= agreement_metrics(self.classifiers, self.agreement_real, expected, recognised)
        for figures in self.basis.figures:
            compared = ComparedSamples(
                images, real, self._real_key, self.device, captions, self.tick, self.warn
            )
            found |= figures.measure(compared)
        return {name: found[name] for name in self.basis.metrics(agrees, bool(captions))}

    def _images(self, view: View, num: int | None = None) -> Iterator[Tensor]:
        return image_batches(view, self.basis.image, self.device, num)

    @cached_property
    def _real_key(self) -> str:
        image = self.basis.image
        place = f"{self.basis.data.fingerprint}/{image.name}/{image.shape}"
        return hashlib.sha256(place.encode() + self.real.train.rows_key).hexdigest()

    def features_digest(self) -> str:
        """Return a digest of the networks whose features and classes are compared."""
        digest = hashlib.sha256()
        for trained in self.classifiers.values():
            digest.update(
                save({name: value.cpu() for name, value in trained.network.state_dict().items()})
            )
        encoder = self.basis.encoder
        if encoder is not None:
            digest.update(encoder_digest(encoder.place, str(encoder.dtype)).encode())
        for figures in self.basis.figures:
            digest.update(figures.digest().encode())
        return digest.hexdigest()


def _nearest(samples: Tensor, reference: Iterable[Tensor], tick: Callable[[], None]) -> float:
    """Return the median root mean square difference of samples to their nearest image, averaged to
    64 pixels a side.
    """
    height, width = (min(side, SIZES[-1]) for side in samples.shape[2:])
    samples = nn.functional.adaptive_avg_pool2d(samples, (height, width))
    distances = []
    for images in reference:
        small = nn.functional.adaptive_avg_pool2d(images, (height, width))
        distances.append(nearest_distances(samples.flatten(1), small.flatten(1)))
        tick()
    return float(torch.stack(distances).amin(0).median()) / prod(samples.shape[1:]) ** 0.5


def recognised_classes(
    classifiers: Mapping[str, TrainedClassifier], images: Sequence[Tensor], tick: Callable[[], None]
) -> dict[str, Tensor]:
    """Return the classes of images given in batches, by column, on the CPU; calls `tick` after each
    batch.
    """
    return {
        name: apply_batched(each.network, images, tick).argmax(1).cpu()
        for name, each in classifiers.items()
    }


def agreement_metrics(
    classifiers: Mapping[str, TrainedClassifier],
    real: float,
    expected: Classes,
    recognised: Classes,
) -> dict[str, float]:
    """Return the agreement metrics, shares with the ends of their intervals over samples; `real` is
    the share of held-out images whose classes are all recognised.
    """
    right = {AGREEMENT: _all_right(expected, recognised)}
    for name in classifiers:
        right[f"{AGREEMENT}_{name}"] = expected[name] == recognised[name]
    found: dict[str, float] = {}
    for name, each in right.items():
        found |= share_estimate(int(each.sum()), len(each)).named(name)
    found[AGREEMENT_REAL] = real
    found[AGREEMENT_CHANCE] = prod(trained.chance for trained in classifiers.values())
    return found


def classes_of(view: View, fields: Sequence[ImageFields], indices: np.ndarray) -> dict[str, Tensor]:
    """Return the classes of a view's rows at `indices`."""
    return {each.label.name: view.gather(each.label.name, indices).long() for each in fields}


def _all_right(expected: Classes, recognised: Classes) -> Tensor:
    """Return True for samples whose classes are right in every column, (num,)."""
    return torch.stack([expected[name] == recognised[name] for name in expected]).all(0)


def draw_reported(
    progress: Progress,
    sampler: Any,
    network: nn.Module,
    conditions: Mapping[str, Tensor],
    num: int,
    *rest: Any,
) -> Samples:
    """Draw samples as `draw_samples` does, and report evaluations of the network in the first
    batch, then samples.

    On a CPU the memory of an evaluation of the network is kept for the next one: bringing it in
    again was half of the time of mnist/unet with 200 pictures of 32 x 32 (1.94 s of processor, and
    1.47 s so).
    """
    done = evaluations = 0

    def count_evaluation(*_: object) -> None:
        nonlocal evaluations
        evaluations += 1
        if not done:
            progress(FIRST_BATCH, evaluations, None, "network evaluations")

    def count_samples(size: int) -> None:
        nonlocal done
        done += size
        progress(BATCHES, done, num, "samples")

    hook = network.register_forward_pre_hook(count_evaluation)
    try:
        with kept_memory():
            return draw_samples(sampler, network, conditions, num, *rest, drawn=count_samples)
    finally:
        hook.remove()


@dataclass
class DrawingEvaluator(ABC):
    """Draws samples of an experiment and measures them; nothing is read or trained before the first
    measurement.
    """

    experiment: Experiment
    data: DataSplits
    home: Home
    device: torch.device
    warn: Callable[[str], None] = ignore
    tick: Callable[[], None] = ignore
    """Called all along a measurement: the first one of images trains a classifier, which takes a
    while.
    """
    progress: Progress = ignore_progress
    """Receives the number of samples drawn."""
    inputs: ModelInputs | None = None
    """Inputs that encode held-out captions for the sampler; None: opened at the first use."""

    @property
    def measured_data(self) -> DataSplits:
        """Rows that samples are compared with."""
        return self.data

    @abstractmethod
    def features_digest(self) -> str:
        """Return a digest of the networks that samples are compared by."""

    @cached_property
    def sampler(self) -> Any:
        """Sampler of `quality_sampler`, which raises UserError."""
        return quality_sampler(self.experiment, self.data)

    def opened_inputs(self) -> ModelInputs:
        """Return `inputs`, opened."""
        if self.inputs is None:
            columns = self.data.train.columns
            self.inputs = ModelInputs.from_experiment(
                self.experiment, columns, self.device, self.warn, self.home
            )
        return self.inputs

    def conditions(self, num: int) -> SampleConditions:
        """Return the conditions of `num` samples; captions are those of the first held-out rows,
        over and over.
        """
        return sample_conditions(
            self.sampler, num, self.measured_data.held_out, self.opened_inputs()
        )

    def draw(self, network: nn.Module, num: int, batch_size: int) -> Any:
        """Draw `num` samples, of which the first k do not depend on `num`. Raises UserError where
        none can be.
        """
        generator = torch.Generator(self.device).manual_seed(
            derived_seed(self.experiment.seed, "quality")
        )
        conditions = self.conditions(num)
        # latents, if such it draws, are decoded
        sampler = self.opened_inputs().decoding(self.sampler)
        return draw_reported(
            self.progress,
            sampler,
            network,
            conditions.tensors,
            conditions.num,
            generator,
            batch_size,
        )

    def measurement(
        self,
        num: int,
        batch_size: int,
        precision: str,
        trained: tuple[Experiment, str, int] | None = None,
    ) -> Measurement:
        """Return what `measure` used, for `precision` of the network.

        `trained`: experiment, kind of device and threads of a training, in place of those here.
        """
        spec, kind, threads = trained or (
            self.experiment,
            self.device.type,
            torch.get_num_threads(),
        )
        seed = derived_seed(self.experiment.seed, "quality")
        features = self.features_digest()
        return quality_measurement(
            spec, self.measured_data, num, batch_size, seed, precision, kind, features, threads
        )


@dataclass(frozen=True)
class DrawnSamples:
    """Samples to be measured, in host memory."""

    images: Tensor
    """(num, channels, height, width) in [-1, 1]."""
    expected: Classes
    """Classes of the rows whose captions the samples were drawn from; empty without captions."""


class QualityEvaluator(DrawingEvaluator):
    """Draws images and measures their quality."""

    @cached_property
    def basis(self) -> QualityBasis:
        """Basis of the metrics. Raises UserError where there is none."""
        basis = quality_basis(self.experiment, self.data, self.home)
        if isinstance(basis, str):
            raise UserError(f"sample quality cannot be measured, as {basis}; choose other data.")
        return basis

    @property
    def measured_data(self) -> DataSplits:
        """Rows with images of the samples' size."""
        return self.basis.data

    @cached_property
    def reference(self) -> QualityReference:
        """Reference of the data, with agreement for samples of captions. Raises UserError as
        `quality` does.
        """
        takes_captions = self.sampler.takes_rows == "conditions"
        return QualityReference(
            self.basis, self.home, self.device, self.warn, self.tick, takes_captions
        )

    def draw(self, network: nn.Module, num: int, batch_size: int) -> DrawnSamples:
        """Draw `num` samples, of which the first k do not depend on `num`. Raises UserError where
        there is no basis.
        """
        self.basis.check()
        drawn = super().draw(network, num, batch_size)
        return DrawnSamples(drawn.values.float(), self.expected(num))

    def expected(self, num: int) -> Classes:
        """Return the classes that the captions of `num` samples name; empty for samples without
        captions.
        """
        if self.sampler.takes_rows != "conditions":
            return {}
        held_out = self.basis.data.held_out
        return classes_of(held_out, self.basis.classes, np.arange(num) % len(held_out))

    def captions(self, num: int) -> list[str]:
        """Return the captions of `num` samples; none for samples without captions, or without
        further figures.
        """
        if (
            not self.basis.figures
            or self.sampler.takes_rows != "conditions"
            or not self.basis.has_captions
        ):
            return []
        held_out = self.basis.data.held_out
        return decode_captions(held_out.padded(CAPTIONS, np.arange(num) % len(held_out)).numpy())

    def measure(self, drawn: DrawnSamples) -> dict[str, float]:
        """Return the metrics of `QualityBasis.metrics`. Raises UserError as `quality` does."""
        return self.reference.measure(
            drawn.images, drawn.expected, self.captions(len(drawn.images))
        )

    def features_digest(self) -> str:
        """Return the digest of the reference's networks."""
        return self.reference.features_digest()
