"""Eligibility of an experiment for quality metrics, checked before a run starts."""

from typing import Any, Protocol, runtime_checkable

from denoisers.contract import ANY
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.quality.basis import QualityBasis, find_basis
from ditlab.quality.encoder import ImageEncoder
from ditlab.quality.images import RANGE
from ditlab.spec.experiment import Experiment


@runtime_checkable
class _DrawsAnySize(Protocol):
    """Sampling settings of a family that draws images of any size."""

    height: int
    width: int


def quality_ineligibility(experiment: Experiment, data: DataSplits) -> str:
    """Return the reason why quality cannot be measured, a clause without a full stop; empty where it can."""
    basis = quality_basis(experiment, data)
    return basis if isinstance(basis, str) else ""


def check_quality(experiment: Experiment, data: DataSplits) -> None:
    """Raise UserError where `evaluation.quality` requests metrics that the data, or the encoder, cannot give."""
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
    """Return the names of the experiment's quality metrics; empty where quality cannot be measured."""
    basis = quality_basis(experiment, data)
    if isinstance(basis, str):
        return ()
    return basis.metrics(quality_sampler(experiment, data).takes_rows == "conditions")


def quality_sampler(experiment: Experiment, data: DataSplits) -> Any:
    """Build the experiment's sampler, which draws from captions of rows in place of `sampling.prompts`.

    Raises UserError for sampling settings that do not fit the model.
    """
    sampling = experiment.sampling
    if "prompts" in type(sampling).model_fields:
        sampling = sampling.model_copy(update={"prompts": ()})
    try:
        return experiment.family.build_sampler(sampling, experiment.model, experiment.objective, data.text)
    except ValueError as error:
        raise UserError(str(error)) from error


def quality_basis(experiment: Experiment, data: DataSplits) -> QualityBasis | str:
    """Return the basis of the experiment's quality metrics; or the reason why there is none, without a full stop."""
    shape = image_shape(experiment)
    if shape is None:
        return f"model.family={experiment.model.family} draws no images"
    return find_basis(data, shape, ImageEncoder.of(experiment))


def image_shape(experiment: Experiment) -> tuple[int, ...] | None:
    """Return (channels, height, width) of images drawn under the sampling settings; None for other samples."""
    for field in experiment.batch_fields():
        if len(field.shape) == 3 and field.dtype == "float32" and field.value_range == RANGE:
            if ANY not in field.shape:
                return field.shape
            sampling = experiment.sampling
            assert isinstance(sampling, _DrawsAnySize), f"{type(sampling).__name__} has no height and width"
            return field.shape[0], sampling.height, sampling.width
    return None


def size_remedy(experiment: Experiment) -> str:
    """Return a remedy for samples of the wrong size, as part of a sentence; empty where the model decides the size."""
    return "set sampling.height and sampling.width" if isinstance(experiment.sampling, _DrawsAnySize) else ""
