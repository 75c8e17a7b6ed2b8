"""Objects that commands of this folder print under `--json`."""

from typing_extensions import TypedDict

from ditlab.cli.output_types import FilesOutput


class EndsOutput(TypedDict):
    """Figure with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None


class StatisticsOutput(FilesOutput):
    """`ditlab data statistics`."""

    images: int
    figures: dict[str, EndsOutput]
    """Figures against the other set, by name; empty without one."""


RESULTS = {"data statistics": StatisticsOutput}
"""Type of the object of each command."""
