"""Eligibility of an experiment for quality metrics: the columns and the encoder that samples can be
measured by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.conditions import name_classes
from ditlab.quality.features import ImageEncoder
from ditlab.quality.figures import QualityFigures, find_figures
from ditlab.quality.images import (
    RANGE,
    ImageFields,
    find_fields,
    find_image,
    image_sizes,
    restrict_to_size,
)
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import ANY, BatchField

SIZES = range(8, 65)
"""Heights and widths that the classifier supports, in pixels."""
FEWEST_TRAIN = 200
FEWEST_HELD_OUT = 50

CLASSIFIER_DISTANCES = ("quality/frechet", "quality/kernel", "quality/kernel_error")
"""Frechet and kernel distance on the classifier's features (lower is better), and the latter's
standard error.
"""
ENCODER_DISTANCES = ("quality/frechet_dino", "quality/kernel_dino", "quality/kernel_dino_error")
"""Frechet and kernel distance on features of the experiment's image encoder (DINOv3), and the
latter's error.
"""
NEAREST = ("quality/nearest", "quality/nearest_held_out")
"""Distance of samples, and of held-out images, to the nearest training image: `nearest` far below
`nearest_held_out` is copying."""

QUALITY_METRICS: tuple[str, ...] = (*CLASSIFIER_DISTANCES, *NEAREST)
"""Metrics of every data set of images with classes."""

AGREEMENT = "quality/agreement"
"""Share of samples that show what their captions say, by the classifiers: all columns of classes
right at once.
"""
AGREEMENT_REAL = "quality/agreement_real"
"""Value of held-out images: that of perfect samples."""
AGREEMENT_CHANCE = "quality/agreement_chance"
"""Product of the largest classes' shares: the value of samples that show nothing of their
captions.
"""
QUALITY_NOTE = (
    "on features of DiTLab's own classifier of this data set (dino: of the image encoder that "
    "the experiment names): numbers compare runs on the same data, never with published FID; "
    "figures of evaluation.features are on published networks"
)
CAPTIONS = "caption"
"""Column of captions."""


@dataclass(frozen=True)
class QualityBasis:
    """Real images of the samples' size, and the features that samples are compared by."""

    data: DataSplits
    """The data set's rows with images of this size."""
    image: BatchField
    classes: tuple[ImageFields, ...]
    """The images with each column of classes, for a classifier each: images are compared by the
    first one's features. Empty where there are no classes, or images are too large."""
    encoder: ImageEncoder | None
    """Encoder whose features images are compared by as well."""
    figures: tuple[QualityFigures, ...]
    """Further figures of the images."""

    def check(self) -> None:
        """Raise UserError where the encoder or a network of further figures cannot be opened, or
        does not fit.
        """
        if self.encoder is not None:
            self.encoder.check(*self.image.shape[1:])
        for figures in self.figures:
            figures.check()

    @property
    def has_captions(self) -> bool:
        """True where held-out images have captions as text."""
        return CAPTIONS in self.data.held_out.columns

    def metrics(self, from_captions: bool, has_captions: bool = False) -> tuple[str, ...]:
        """Return the names of the metrics; of agreement too, for samples drawn from held-out
        images' captions, and those of captions themselves where these are at hand."""
        names = [*(CLASSIFIER_DISTANCES if self.classes else ()), *NEAREST]
        names += ENCODER_DISTANCES if self.encoder else ()
        if self.classes and from_captions:
            columns = [f"{AGREEMENT}_{fields.label.name}" for fields in self.classes]
            for share in (AGREEMENT, *columns):
                names += [share, f"{share}_low", f"{share}_high"]
            names += [AGREEMENT_REAL, AGREEMENT_CHANCE]
        for figures in self.figures:
            names += figures.names(has_captions)
        return tuple(names)


def find_basis(
    data: DataSplits,
    shape: tuple[int, ...],
    encoder: ImageEncoder | None = None,
    figures: Sequence[QualityFigures] = (),
) -> QualityBasis | str:
    """Return the basis for samples of this shape (channels, height, width); or a clause on why
    there is none.
    """
    for each in figures:
        problem = each.shape_problem(shape)
        if problem:
            return problem
    has_features = encoder is not None or bool(figures)
    size = " x ".join(map(str, shape[1:]))
    remedy = ""
    if shape[:1] == (3,):
        remedy = ", and encoders.image names no encoder to take its place"
    fits_classifier = len(shape) == 3 and all(side in SIZES for side in shape[1:])
    if not fits_classifier and not has_features:
        return f"images of {size} pixels are not {SIZES[0]} to {SIZES[-1]} a side{remedy}"
    origin = data.train.origin
    train = restrict_to_size(data.train, shape)
    held_out = restrict_to_size(data.held_out, shape)
    no_images = (
        f"{origin} holds no images {shape} with class indices, which a classifier needs to "
        f"learn{remedy}"
    )
    image = find_image(train.columns, shape)
    if image is None:
        sizes = ", ".join(image_sizes(data.train, shape))
        if not sizes:
            return no_images
        return f"{origin} holds images of {sizes} pixels and none of {size}, which samples have"
    classes = find_fields(train.columns, shape) if fits_classifier else ()
    if not (classes or has_features):
        return no_images
    problem = _too_few(data, train, held_out, shape)
    if problem:
        return problem
    of_size = replace(data, train=train, held_out=held_out)
    return QualityBasis(of_size, image, classes, encoder, tuple(figures))


def _too_few(data: DataSplits, train: View, held_out: View, shape: tuple[int, ...]) -> str:
    """Return a clause on too few images of this shape; empty where there are enough."""
    origin = data.train.origin
    of_size = ""
    if len(data.train.store.parts) > 1:
        of_size = f" of {' x '.join(map(str, shape[1:]))} pixels"
    if find_image(held_out.columns, shape) is None or len(held_out) < FEWEST_HELD_OUT:
        return (
            f"{origin} holds out {len(held_out)} images{of_size}, and at least "
            f"{FEWEST_HELD_OUT} are needed"
        )
    if len(train) < FEWEST_TRAIN:
        return (
            f"{origin} trains on {len(train)} images{of_size}, and at least {FEWEST_TRAIN} are "
            "needed"
        )
    return ""


def quality_ineligibility(experiment: Experiment, data: DataSplits) -> str:
    """Return the reason why quality cannot be measured, a clause without a full stop; empty where
    it can.
    """
    basis = quality_basis(experiment, data)
    return basis if isinstance(basis, str) else ""


def check_quality(experiment: Experiment, data: DataSplits) -> None:
    """Raise UserError where `evaluation.quality` requests metrics that the data, or the encoder,
    cannot give.
    """
    basis = quality_basis(experiment, data)
    if isinstance(basis, str):
        remedies = list(filter(None, ["set evaluation.quality=0", size_remedy(experiment)]))
        raise UserError(
            f"evaluation.quality={experiment.evaluation.quality} cannot be measured, as "
            f"{basis}; {', '.join(remedies)}, or change data."
        )
    basis.check()


def quality_names(experiment: Experiment, data: DataSplits) -> tuple[str, ...]:
    """Return the names of the experiment's quality metrics; empty where quality cannot be
    measured.
    """
    basis = quality_basis(experiment, data)
    if isinstance(basis, str):
        return ()
    from_captions = quality_sampler(experiment, data).takes_rows == "conditions"
    return basis.metrics(from_captions, from_captions and basis.has_captions)


def quality_sampler(experiment: Experiment, data: DataSplits) -> Any:
    """Build the sampler, which draws from captions of rows, not the spec's. Raises UserError for
    unfit settings.
    """
    sampling = experiment.sampling
    if "prompts" in type(sampling).model_fields:
        sampling = sampling.model_copy(update={"prompts": ()})
    try:
        sampler = experiment.family.build_sampler(
            sampling, experiment.model, experiment.objective, data.text
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    return name_classes(sampler, data.classes)


def quality_basis(
    experiment: Experiment, data: DataSplits, home: Home | None = None
) -> QualityBasis | str:
    """Return the basis of the experiment's quality metrics; or the reason why there is none,
    without a full stop.
    """
    for field in experiment.batch_fields():
        if len(field.shape) == 3 and field.dtype == "float32" and field.value_range == RANGE:
            shape = _sample_shape(experiment, data, field)
            figures = find_figures(experiment, data, home)
            return find_basis(data, shape, ImageEncoder.of(experiment), figures)
    return f"model.family={experiment.model.family} draws no images"


def _sample_shape(experiment: Experiment, data: DataSplits, field: BatchField) -> tuple[int, ...]:
    """Shape (channels, height, width) of samples of a field; () where the data lack it."""
    # latents are decoded to images of the store's size
    if experiment.encoders.autoencoder:
        columns = data.train.columns
        return columns[field.name].shape if field.name in columns else ()
    if ANY in field.shape:  # of a family that draws any size
        sampling: Any = experiment.sampling
        return field.shape[0], sampling.height, sampling.width
    return field.shape


def size_remedy(experiment: Experiment) -> str:
    """Return a remedy for samples of the wrong size, as part of a sentence; empty where the model
    decides the size.
    """
    if hasattr(experiment.sampling, "height"):
        return "set sampling.height and sampling.width"
    return ""
