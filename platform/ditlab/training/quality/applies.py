"""Whether a data set gives quality figures, found out before a run starts."""

from ditlab.data.sources import DataSplits
from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment
from ditlab.training.quality.images import RANGE, find_fields

SIZES = range(8, 65)
"""Heights and widths that the classifier is made for, in pixels."""
FEWEST_TRAIN, FEWEST_HELD_OUT = 200, 50


def quality_applies(experiment: Experiment, data: DataSplits) -> str:
    """Empty where quality figures can be measured, else why not: a clause without a full stop."""
    shape = image_shape(experiment)
    if shape is None:
        return f"model.family={experiment.model.family} draws no images"
    return unmeasurable(data, shape)


def check_quality(experiment: Experiment, data: DataSplits) -> None:
    """Raises UserError where `evaluation.quality` asks for figures that the data cannot give."""
    if experiment.evaluation.quality and (reason := quality_applies(experiment, data)):
        raise UserError(
            f"evaluation.quality={experiment.evaluation.quality} cannot be measured, as {reason}; "
            "set evaluation.quality=0, or change data."
        )


def image_shape(experiment: Experiment) -> tuple[int, ...] | None:
    """(channels, height, width) of what the model draws; None where that is no image."""
    for field in experiment.batch_fields():
        if len(field.shape) == 3 and field.dtype == "float32" and field.value_range == RANGE:
            return field.shape
    return None


def unmeasurable(data: DataSplits, shape: tuple[int, ...]) -> str:
    """Why images of this shape cannot be measured against this data; empty where they can."""
    origin = data.train.origin
    if len(shape) != 3 or not all(size in SIZES for size in shape[1:]):
        return f"images of {' x '.join(map(str, shape[1:]))} pixels are not {SIZES[0]} to {SIZES[-1]} a side"
    if find_fields(data.train.columns, shape) is None:
        return f"{origin} holds no images {shape} with class indices, which a classifier needs to learn"
    if len(data.held_out) < FEWEST_HELD_OUT:
        return f"{origin} holds out {len(data.held_out)} images, and at least {FEWEST_HELD_OUT} are needed"
    if len(data.train) < FEWEST_TRAIN:
        return f"{origin} trains on {len(data.train)} images, and at least {FEWEST_TRAIN} are needed"
    return ""
