"""Objects that commands of this folder print under `--json`."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

from ditlab.cli.output_types import FilesOutput, Numbers


class MeasurementOutput(TypedDict):
    """How a group of figures is measured."""

    digest: str
    parts: dict[str, str]
    """Digest of each part."""
    words: dict[str, str]
    """Parts in words, as far as they have any."""


class StepFilesOutput(FilesOutput):
    """`ditlab export`: files made of a run's weights at a step."""

    run_id: str
    step: int


class SampleOutput(StepFilesOutput):
    """`ditlab sample`."""

    not_finite: int
    """Samples with a value that is NaN or infinite."""


class EvaluationOutput(TypedDict):
    """`ditlab evaluate`."""

    run_id: str
    step: int
    metrics: Numbers
    evaluation: str
    """Digest of measurements, spec and weights: equal for one evaluation made twice."""
    measurements: dict[str, MeasurementOutput]
    """Measurement by group of metrics: eval, held_out, assessed, quality."""
    intervals: dict[str, list[float | None]]
    """Ends of the 95 % interval by metric, where it has one."""
    doubtful_intervals: str
    """Sentence that names the intervals that few samples carry; empty where there are none."""
    differences: dict[str, list[str]]
    """Differences from training's measurement in words, by group; such a group is not added to the
    run.
    """
    left_out: NotRequired[dict[str, list[str]]]
    """Classes that were kept out of training, by column."""
    tables: NotRequired[dict[str, dict[str, list[Any]]]]
    files: NotRequired[list[str]]


AveragePointOutput = TypedDict("AveragePointOutput", {"profile": str, "metrics": Numbers})


class AveragesOutput(TypedDict):
    """`ditlab evaluate --ema`."""

    run_id: str
    averages: list[AveragePointOutput]


KindsOutput = TypedDict("KindsOutput", {"kinds": list[str]})


RESULTS = {
    "sample": SampleOutput,
    "evaluate": EvaluationOutput | AveragesOutput,
    "figures": FilesOutput | KindsOutput,
    "export": StepFilesOutput,
}
"""Type of the object of each command."""
