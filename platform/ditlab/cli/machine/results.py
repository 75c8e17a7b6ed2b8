"""Objects that commands of this folder print under `--json`."""

from typing import NotRequired

from typing_extensions import TypedDict


class DoctorOutput(TypedDict):
    """`ditlab doctor`; exit code 1 where something is missing."""

    missing: list[str]
    findings: list[dict[str, str]]
    verdict: NotRequired[str]
    """With `--cluster`."""


RESULTS = {
    "doctor": DoctorOutput,
}
"""Type of the object of each command."""
