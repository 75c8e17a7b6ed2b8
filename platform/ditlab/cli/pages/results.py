"""Objects that commands of this folder print under `--json`."""

from typing_extensions import TypedDict

ReportOutput = TypedDict("ReportOutput", {"run_id": str, "file": str, "bytes": int})

WatchOutput = TypedDict("WatchOutput", {"url": str, "run_id": str, "pid": int})

UiOutput = TypedDict("UiOutput", {"url": str, "page": str, "home": str, "pid": int})


RESULTS = {
    "report": ReportOutput,
    "watch": WatchOutput,
    "ui": UiOutput,
}
"""Type of the object of each command."""
