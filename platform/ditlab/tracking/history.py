"""History of a run from its journal: points of its metrics, results of its evaluations, and other
facts.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ditlab.home import RunFolder
from ditlab.tracking.journal import (
    RESULT_PREFIXES,
    TRAIN_LOSS,
    JournalContent,
    read_content,
    recent_median,
)

if TYPE_CHECKING:
    import numpy as np

PAGE_NAME = "report.html"
"""File name of a run's page among its artifacts."""

MAIN_TAG = "ditlab.main_metric"
"""Tag with the held-out metric by which a run is read first; lower is better."""

PROOF_TAG = "ditlab.proof"
"""Tag of a run that was proved before it began: verdict, engine, code, date."""

DEVICES_TAG = "ditlab.devices"
"""Tag with what an attempt holds: `2 GPU`, `4 core`, and the price of an hour of one where there is
one: `2 GPU at 2.5`."""

NAME_TAG = "mlflow.runName"
"""Tag with the name that `runs rename` gave, which wins over that of the journal's start."""

STRAGGLER_TAG = "ditlab.straggler"
"""Tag that names the worker that was slow last, and how slow."""
SPEED = "train/samples_per_second"
_KEPT = (*RESULT_PREFIXES, SPEED)
PACE = ("time/", "perf/")
"""Beginnings of the names of metrics of a run's speed."""


@dataclass
class JournalFacts:
    """Latest facts of a run's journal."""

    name: str = ""
    family: str = ""
    params: dict[str, str] = field(default_factory=dict)
    """Every parameter logged so far; the first value stays."""
    resumes: list[dict[str, Any]] = field(default_factory=list)
    """Records of the resumes that changed parameters."""
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
    seconds: float = 0.0
    """Seconds of all attempts up to the latest record."""
    device_hours: dict[str, float] = field(default_factory=dict)
    """Hours of devices, those of several added, by kind: `GPU`, `core`."""
    price: float = 0.0
    """Price of these hours; 0 where none is set."""
    counted_until: int = 0
    """Time of the latest record of an attempt; 0 after its end."""

    @classmethod
    def of(cls, content: JournalContent) -> JournalFacts:
        """Facts of a journal."""
        facts = cls()
        for record in content.events:
            facts.add(record)
        return facts

    @property
    def current_params(self) -> dict[str, str]:
        """Every parameter that holds now, after all resumes."""
        changed: dict[str, str] = {}
        for record in self.resumes:
            changed |= {path: new for path, (_, new) in record["changes"].items()}
        return {
            path: value
            for path, value in {**self.params, **changed}.items()
            if changed.get(path, value)
        }

    def held_out_text(self, names: Iterable[str]) -> str:
        """Say why held-out metrics of these names differ, as the function `held_out_text` does."""
        return held_out_text(
            names, self.dataset.get("counts", {}), self.current_params.get("evaluation.limit")
        )

    def add(self, record: dict[str, Any]) -> None:
        """Take in the next of a journal's events."""
        self.count_time(record["time"], record["kind"])
        match record["kind"]:
            case "start":
                self.name = self.tags.get(NAME_TAG, record["name"])
                self.family = record["family"]
                self.status = "running"
            case "params":
                self.params = {**record["values"], **self.params}
            case "resume":
                self.resumes.append(record)
            case "tags":
                self.tags |= record["values"]
                self.name = self.tags.get(NAME_TAG, self.name)
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

    @property
    def cost(self) -> str:
        """Hours of devices and their price: `1.25 GPU hours, price 3.12`; empty where they were not
        counted.
        """
        texts = [f"{hours:.3g} {device} hours" for device, hours in self.device_hours.items()]
        return ", ".join(texts + [f"price {self.price:.3g}"] * bool(self.price))

    def count_time(self, time: int, kind: str = "") -> None:
        """Count an attempt's time up to `time`, milliseconds since 1970; nothing between an attempt
        and the next.
        """
        if self.counted_until and kind != "start":
            elapsed = max(0, time - self.counted_until) / 1000
            self.seconds += elapsed
            number, device, _, price = [*self.tags.get(DEVICES_TAG, "").split(), "", "", "", ""][:4]
            if device:
                hours = float(number) * elapsed / 3600
                self.device_hours[device] = self.device_hours.get(device, 0.0) + hours
                self.price += hours * float(price or 0)
            if kind == "end":
                time = 0
        if self.counted_until or kind == "start":
            self.counted_until = time


class ResultPoint(NamedTuple):
    """A point of a metric."""

    step: int
    value: float
    time: int
    """Milliseconds since 1970, as in the journal."""


@dataclass
class MetricSpan:
    """Extremes of one metric; NaN is neither the lowest nor the highest."""

    first: ResultPoint
    last: ResultPoint
    low: ResultPoint
    high: ResultPoint

    def add(self, point: ResultPoint) -> None:
        """Add the next point."""
        self.last = point
        if point.value < self.low.value or math.isnan(self.low.value):
            self.low = point
        if point.value > self.high.value or math.isnan(self.high.value):
            self.high = point


class RunResults(dict[str, MetricSpan]):
    """Spans of a run's results by metric, in the order in which the metrics appeared."""

    def add(self, name: str, point: ResultPoint) -> None:
        """Add a point; metrics that are no results are skipped."""
        span = self.get(name)
        if span:
            span.add(point)
        elif name.startswith(_KEPT):
            self[name] = MetricSpan(point, point, point, point)

    def add_step(self, step: int, values: Mapping[str, float], time: int) -> None:
        """Add a step's points, of which most are of no result."""
        for name, value in values.items():
            if name.startswith(_KEPT):
                self.add(name, ResultPoint(step, value, time))

    def load(self, content: JournalContent) -> None:
        """Add the points of a journal."""
        for name, points in content.metrics.items():
            if name == SPEED:  # it has a point for each step, and nobody asks for extremes
                self.add(name, ResultPoint(points.steps[-1], points.values[-1], points.times[-1]))
            elif name.startswith(RESULT_PREFIXES):
                for point in map(ResultPoint, points.steps, points.values, points.times):
                    self.add(name, point)


def held_out_text(names: Iterable[str], counts: Mapping[str, int], limit: object) -> str:
    """Say in a sentence why metrics of these names differ, where `eval/...` and `held_out/...`
    stand together: they are means over other samples; empty else, and where the numbers are not
    known.

    `counts`: samples by part of the data, as a run's record of its data has them; `limit`: its
    evaluation.limit.
    """
    groups = {name.partition("/")[0] for name in names}
    whole = counts.get("held_out")
    few = str(limit)
    if not groups >= {"eval", "held_out"}:
        return ""
    if whole is None or not few.isdecimal() or int(few) >= whole:
        return ""
    return (
        f"eval/... is measured in training on {int(few):,} of the {whole:,} held-out samples "
        f"(evaluation.limit), held_out/... by `ditlab evaluate` on all {whole:,}, so they "
        "differ."
    )


def _no_numbers(kind: str) -> np.ndarray:
    import numpy as np  # a list of runs needs none

    return np.empty(0, kind)


@dataclass(frozen=True, eq=False)
class Series:
    """One metric over the steps."""

    steps: np.ndarray = field(default_factory=lambda: _no_numbers("int64"))
    """int64."""
    values: np.ndarray = field(default_factory=lambda: _no_numbers("float64"))
    """float64."""
    times: np.ndarray = field(default_factory=lambda: _no_numbers("int64"))
    """Milliseconds since 1970, int64."""

    def recent_median(self) -> float:
        """Return the median over the last 2 % of the steps; NaN without any."""
        return recent_median(dict(zip(self.steps.tolist(), self.values.tolist(), strict=True)))


def metric_history(folder: RunFolder) -> dict[str, Series]:
    """Every metric of a run by name, in the order it was logged; {} where there is no journal."""
    try:
        return series_of(read_content(folder.journal))
    except OSError:
        return {}


def series_of(content: JournalContent, prefixes: tuple[str, ...] = ("",)) -> dict[str, Series]:
    """Every metric of a journal by name, or those of some prefixes."""
    import numpy as np

    return {
        name: Series(np.array(points.steps), np.array(points.values), np.array(points.times))
        for name, points in content.metrics.items()
        if name.startswith(prefixes)
    }


def final_values(history: Mapping[str, Series]) -> dict[str, float]:
    """Return the latest value of every metric; of `train/loss` its `recent_median`, of speeds the
    median.
    """
    import numpy as np

    found = {}
    for name, series in history.items():
        value = series.values[-1]
        if name.startswith(PACE):
            value = np.median(series.values)
        found[name] = float(value)
    loss = history.get(TRAIN_LOSS)
    if loss:
        found[TRAIN_LOSS] = loss.recent_median()
    return found
