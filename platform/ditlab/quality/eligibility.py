"""Whether an experiment's samples give quality figures, and which, found out before a run starts."""

from typing import Any, Protocol, runtime_checkable

from denoisers.contract import ANY
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.quality.basis import Basis, find_basis
from ditlab.quality.encoder import ImageEncoder
from ditlab.quality.images import RANGE
from ditlab.spec.experiment import Experiment


@runtime_checkable
class _DrawsAnySize(Protocol):
    """Sampling settings of a family whose images have any size."""

    height: int
    width: int


def quality_applies(experiment: Experiment, data: DataSplits) -> str:
    """Empty where quality figures can be measured, else why not: a clause without a full stop."""
    basis = quality_basis(experiment, data)
    return basis if isinstance(basis, str) else ""


def check_quality(experiment: Experiment, data: DataSplits) -> None:
    """Raises UserError where `evaluation.quality` asks for figures that the data, or the encoder, cannot give."""
    if not experiment.evaluation.quality:
        return
    basis = quality_basis(experiment, data)
    if isinstance(basis, str):
        raise UserError(
            f"evaluation.quality={experiment.evaluation.quality} cannot be measured, as {basis}; "
            f"{', '.join(filter(None, ['set evaluation.quality=0', size_remedy(experiment)]))}, or change data."
        )
    basis.check()


def quality_names(experiment: Experiment, data: DataSplits) -> tuple[str, ...]:
    """The figures that samples of the experiment give, by name; empty where they give none."""
    basis = quality_basis(experiment, data)
    if isinstance(basis, str):
        return ()
    return basis.metrics(quality_sampler(experiment, data).takes_rows == "conditions")


def quality_sampler(experiment: Experiment, data: DataSplits) -> Any:
    """What draws the samples: the experiment's sampler, which shows captions of rows in place of `sampling.prompts`.

    Raises UserError for sampling settings that do not fit the model.
    """
    sampling = experiment.sampling
    if "prompts" in type(sampling).model_fields:
        sampling = sampling.model_copy(update={"prompts": ()})
    try:
        return experiment.family.build_sampler(sampling, experiment.model, experiment.objective, data.text)
    except ValueError as error:
        raise UserError(str(error)) from error


def quality_basis(experiment: Experiment, data: DataSplits) -> Basis | str:
    """What the experiment's samples are measured by; or why they cannot be: a clause without a full stop."""
    shape = image_shape(experiment)
    if shape is None:
        return f"model.family={experiment.model.family} draws no images"
    return find_basis(data, shape, ImageEncoder.of(experiment))


def image_shape(experiment: Experiment) -> tuple[int, ...] | None:
    """(channels, height, width) of what the model draws under the sampling settings; None where that is no image."""
    for field in experiment.batch_fields():
        if len(field.shape) == 3 and field.dtype == "float32" and field.value_range == RANGE:
            if ANY not in field.shape:
                return field.shape
            sampling = experiment.sampling
            assert isinstance(sampling, _DrawsAnySize), f"{type(sampling).__name__} tells no height and width"
            return field.shape[0], sampling.height, sampling.width
    return None


def size_remedy(experiment: Experiment) -> str:
    """What else may make samples measurable: a part of a sentence, empty where their size is the model's own."""
    return "set sampling.height and sampling.width" if isinstance(experiment.sampling, _DrawsAnySize) else ""
