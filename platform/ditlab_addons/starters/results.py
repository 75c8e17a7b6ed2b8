"""Object that `ditlab new` prints under `--json`."""

from typing_extensions import TypedDict

from ditlab.cli.output_types import FilesOutput


class ExperimentsOutput(TypedDict):
    experiments: dict[str, str]


RESULTS = {"new": FilesOutput | ExperimentsOutput}
"""Type of the object, by the command."""
