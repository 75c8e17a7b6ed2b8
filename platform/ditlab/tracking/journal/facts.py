"""Facts of a run that its journal holds beside the metrics: name, data, tags, samples, pages, status."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any

PAGE_NAME = "report.html"
"""File name of a run's page among its artifacts."""

MAIN_TAG = "ditlab.main_metric"
"""Tag with the held-out metric by which a run is read first; lower is better."""

PROOF_TAG = "ditlab.proof"
"""Tag of a run that was proved before it began: verdict, engine, code, date."""

STRAGGLER_TAG = "ditlab.straggler"
"""Tag that names the worker that was slow last, and how slow."""


@dataclass
class JournalFacts:
    """Latest facts of a run's journal."""

    name: str = ""
    family: str = ""
    params: dict[str, str] = field(default_factory=dict)
    """Every parameter logged so far; the first value stays."""
    tags: dict[str, str] = field(default_factory=dict)
    """Every tag, with its last value."""
    dataset: dict[str, Any] = field(default_factory=dict)
    """The `dataset` record of training; empty before it."""
    images: dict[str, int] = field(default_factory=dict)
    """Newest step by image key."""
    page: str = ""
    """Path of the run's page among MLflow's artifacts; empty where there is none."""
    status: str = "running"
    overview_steps: dict[str, int] = field(default_factory=dict)
    """Last step of each figure of the overview."""

    def add(self, record: dict[str, Any]) -> None:
        """Take in the next record that holds no metrics."""
        match record["kind"]:
            case "start":
                self.name, self.family, self.status = record["name"], record["family"], "running"
            case "params":
                self.params = {**record["values"], **self.params}
            case "tags":
                self.tags |= record["values"]
            case "dataset" if record["context"] == "training":
                self.dataset = record
            case "image":
                self.images[record["key"]] = max(record["step"], self.images.get(record["key"], 0))
            case "artifact" if posixpath.basename(record["path"]) == PAGE_NAME:
                self.page = posixpath.join(record["artifact_path"] or "", PAGE_NAME)
            case "overview":
                self.overview_steps |= dict.fromkeys(record["values"], record["step"])
            case "end":
                self.status = record["status"]
