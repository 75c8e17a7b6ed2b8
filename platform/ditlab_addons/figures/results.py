"""Objects that commands of this folder print under `--json`."""

from ditlab.cli.output_types import FilesOutput, Numbers


class StatisticsOutput(FilesOutput):
    """`ditlab data statistics`."""

    images: int
    figures: Numbers
    """Figures against the other set, and the ends of their intervals (`fid_low`); empty without one."""


RESULTS = {"data statistics": StatisticsOutput}
"""Type of the object of each command."""
