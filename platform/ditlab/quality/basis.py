"""Basis of quality metrics: the columns of a data set, and the encoder, that samples can be measured by."""

from dataclasses import dataclass, replace

from denoisers.contract import BatchField
from ditlab.data.splits import DataSplits
from ditlab.quality.encoder import ImageEncoder
from ditlab.quality.images import ImageFields, find_fields, find_image, image_sizes, restrict_to_size
from ditlab.quality.names import CLASSIFIER_DISTANCES, ENCODER_DISTANCES, NEAREST, agreement_names

SIZES = range(8, 65)
"""Heights and widths that the classifier supports, in pixels."""
FEWEST_TRAIN, FEWEST_HELD_OUT = 200, 50


@dataclass(frozen=True)
class QualityBasis:
    """Real images of the samples' size, and the features that samples are compared by."""

    data: DataSplits
    """The data set's rows with images of this size."""
    image: BatchField
    classes: tuple[ImageFields, ...]
    """The images with each column of classes, for a classifier each: images are compared by the first one's features.
    Empty where there are no classes, or images are too large."""
    encoder: ImageEncoder | None
    """Encoder whose features images are compared by as well."""

    def check(self) -> None:
        """Raise UserError where the encoder cannot be opened, or does not fit the images."""
        if self.encoder is not None:
            self.encoder.check(*self.image.shape[1:])

    def metrics(self, from_captions: bool) -> tuple[str, ...]:
        """Return the names of the metrics; of agreement too, for samples drawn from held-out images' captions."""
        columns = [fields.label.name for fields in self.classes]
        return (
            *(CLASSIFIER_DISTANCES if self.classes else ()),
            *NEAREST,
            *(ENCODER_DISTANCES if self.encoder else ()),
            *(agreement_names(columns) if columns and from_captions else ()),
        )


def find_basis(data: DataSplits, shape: tuple[int, ...], encoder: ImageEncoder | None = None) -> QualityBasis | str:
    """Return the basis for samples of this shape (channels, height, width); or the reason why there is none.

    The reason is a clause without a full stop. `encoder` is the experiment's; it needs images of three channels.
    """
    size, channels = " x ".join(map(str, shape[1:])), shape[0] if shape else 0
    fits_classifier = len(shape) == 3 and all(side in SIZES for side in shape[1:])
    if not fits_classifier and not encoder:
        return f"images of {size} pixels are not {SIZES[0]} to {SIZES[-1]} a side{_or_an_encoder(channels)}"
    origin, train, held_out = (
        data.train.origin,
        restrict_to_size(data.train, shape),
        restrict_to_size(data.held_out, shape),
    )
    image = find_image(train.columns, shape)
    if image is None and (sizes := image_sizes(data.train, channels)):
        return f"{origin} holds images of {', '.join(sizes)} pixels and none of {size}, which samples have"
    classes = find_fields(train.columns, shape) if fits_classifier else ()
    if image is None or not (classes or encoder):
        needs = f"which a classifier needs to learn{_or_an_encoder(channels)}"
        return f"{origin} holds no images {shape} with class indices, {needs}"
    if find_image(held_out.columns, shape) is None or len(held_out) < FEWEST_HELD_OUT:
        return f"{origin} holds out {len(held_out)} images{_of(data, size)}, and at least {FEWEST_HELD_OUT} are needed"
    if len(train) < FEWEST_TRAIN:
        return f"{origin} trains on {len(train)} images{_of(data, size)}, and at least {FEWEST_TRAIN} are needed"
    return QualityBasis(replace(data, train=train, held_out=held_out), image, classes, encoder)


def _or_an_encoder(channels: int) -> str:
    return ", and encoders.image names no encoder to take its place" if channels == 3 else ""


def _of(data: DataSplits, size: str) -> str:
    return f" of {size} pixels" if len(data.train.store.parts) > 1 else ""
