"""State of a run in the text format of OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest

from ditlab.storage.files import write_whole

INTERVAL = 5.0
"""Least seconds between two renewals of the file."""
_SHARE = 0.002
"""Largest share of the time that renewals may take: on a slow disk they are rarer."""


@dataclass(frozen=True)
class RunGauges:
    """State of a run for scrapers."""

    step: int
    total_steps: int
    samples: int
    """Samples of the steps done."""
    is_running: bool
    metrics: Mapping[str, float]
    """Latest metrics, under their MLflow names."""
    phase_seconds: Mapping[str, Sequence[float]]
    """Seconds of each worker by phase, since the run was started or resumed."""
    peak_memory: Sequence[int]
    """Bytes of each worker."""


def openmetrics_text(gauges: RunGauges, run_id: str, name: str, family: str, now: float) -> bytes:
    """Format a run's state; every sample has the label `run`, and `now` is in seconds since 1970."""
    phases = {(phase, str(rank)): value for phase, seconds in gauges.phase_seconds.items()
              for rank, value in enumerate(seconds)}  # fmt: skip
    memory = {(str(rank),): size for rank, size in enumerate(gauges.peak_memory) if size}
    families = []
    for title, kind, about, unit, labels, samples in (
        ("ditlab_run", "info", "Name and family of the run.", "", ("name", "family"), {(name, family): 1.0}),
        ("ditlab_running", "gauge", "1 while the run trains, 0 once it has ended in order.", "", (),
         {(): gauges.is_running}),
        ("ditlab_updated_timestamp_seconds", "gauge", "Time of these values.", "seconds", (), {(): now}),
        ("ditlab_steps", "gauge", "Optimiser steps done.", "", (), {(): gauges.step}),
        ("ditlab_planned_steps", "gauge", "Optimiser steps of the whole run.", "", (), {(): gauges.total_steps}),
        ("ditlab_samples", "counter", "Samples of the steps done.", "", (), {(): gauges.samples}),
        ("ditlab_phase_seconds", "counter", "Time of each worker by phase, since the start or resumption.", "seconds",
         ("phase", "worker"), phases),
        ("ditlab_peak_memory_bytes", "gauge", "Peak memory of each worker.", "bytes", ("worker",), memory),
        ("ditlab_metric", "gauge", "Latest value of each metric, by its name in MLflow.", "", ("name",),
         {(metric,): value for metric, value in gauges.metrics.items()}),
    ):  # fmt: skip
        each = Metric(title, about, kind, unit)
        suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
        for values, value in samples.items():
            own = dict(zip(labels, values, strict=True))
            each.add_sample(title + suffix, {"run": run_id, **own}, float(value))
        if each.samples:
            families.append(each)
    text: bytes = generate_latest(SimpleNamespace(collect=lambda: families))
    return text


class OpenMetricsFile:
    """File with a run's state: replaced as a whole, at most every five seconds, so that a scraper never reads half."""

    def __init__(
        self, path: Path, run_id: str, name: str, family: str, warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._path = path
        self._labels = (run_id, name, family)
        self._warn = warn
        self._clock = clock
        self._next = -math.inf
        self._has_warned = False

    def renew(self, gauges: Callable[[], RunGauges], is_last: bool = False) -> None:
        """Write the state if that is due, or the last one; a disk that refuses costs one warning."""
        begin = self._clock()
        if begin < self._next and not is_last:
            return
        try:
            write_whole(self._path, openmetrics_text(gauges(), *self._labels, time.time()))
        except OSError as error:
            if not self._has_warned:
                self._warn(f"{self._path} cannot be written ({error.strerror}); training goes on without it.")
            self._has_warned = True
        self._next = begin + max(INTERVAL, (self._clock() - begin) / _SHARE)
