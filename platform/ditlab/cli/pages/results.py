"""Objects that commands of this folder print under `--json`."""

from typing_extensions import TypedDict

ReportOutput = TypedDict("ReportOutput", {"run_id": str, "file": str, "bytes": int})

UiOutput = TypedDict("UiOutput", {"url": str, "page": str, "home": str, "pid": int})


RESULTS = {
    "report": ReportOutput,
    "ui": UiOutput,
}
"""Type of the object of each command."""
