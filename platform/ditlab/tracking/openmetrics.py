"""State of a run in the text format of OpenMetrics 1.0, for Prometheus and whatever else scrapes it.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ditlab.storage.files import write_whole

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
INTERVAL = 5.0
"""Least seconds between two renewals of the file."""
_SHARE = 0.002
"""Largest share of the time that renewals may take: on a slow disk they are rarer."""
_LABEL = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


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


@dataclass(frozen=True)
class _Family:
    """One metric family."""

    name: str
    kind: str
    about: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    """Labels and value of each sample."""
    unit: str = ""

    def lines(self, labels: Mapping[str, str]) -> Iterator[str]:
        """The family's lines; `labels` are those of all samples."""
        yield f"# TYPE {self.name} {self.kind}"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {self.about}"
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        for own, value in self.samples:
            shown = ",".join(f'{key}="{text.translate(_LABEL)}"' for key, text in {**labels, **own}.items())
            yield f"{self.name}{suffix}{{{shown}}} {_number(value)}"


def openmetrics_text(gauges: RunGauges, run_id: str, name: str, family: str, now: float) -> str:
    """Format a run's state; `now` is in seconds since 1970. Every sample has the label `run`."""
    by_phase = [
        ({"phase": phase, "worker": str(worker)}, seconds)
        for phase, workers in gauges.phase_seconds.items()
        for worker, seconds in enumerate(workers)
    ]
    memory = [({"worker": str(worker)}, float(size)) for worker, size in enumerate(gauges.peak_memory) if size]
    latest = [({"name": metric}, value) for metric, value in gauges.metrics.items()]
    families = [
        _Family("ditlab_run", "info", "Name and family of the run.", [({"name": name, "family": family}, 1)]),
        _Family("ditlab_running", "gauge", "1 while the run trains, 0 once it has ended in order.",
                [({}, float(gauges.is_running))]),
        _Family("ditlab_updated_timestamp_seconds", "gauge", "Time of these values.", [({}, now)], "seconds"),
        _Family("ditlab_steps", "gauge", "Optimiser steps done.", [({}, gauges.step)]),
        _Family("ditlab_planned_steps", "gauge", "Optimiser steps of the whole run.", [({}, gauges.total_steps)]),
        _Family("ditlab_samples", "counter", "Samples of the steps done.", [({}, gauges.samples)]),
        _Family("ditlab_phase_seconds", "counter", "Time of each worker by phase, since the start or resumption.",
                by_phase, "seconds"),
        _Family("ditlab_peak_memory_bytes", "gauge", "Peak memory of each worker.", memory, "bytes"),
        _Family("ditlab_metric", "gauge", "Latest value of each metric, by its name in MLflow.", latest),
    ]  # fmt: skip
    lines = [line for each in families if each.samples for line in each.lines({"run": run_id})]
    return "\n".join([*lines, "# EOF", ""])


class OpenMetricsFile:
    """File with a run's state: replaced as a whole, at most every five seconds, so that a scraper never reads half."""

    def __init__(
        self,
        path: Path,
        run_id: str,
        name: str,
        family: str,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._labels, self._warn, self._clock = path, (run_id, name, family), warn, clock
        self._next = -math.inf
        self._has_warned = False

    def renew(self, gauges: Callable[[], RunGauges], is_last: bool = False) -> None:
        """Write the state if that is due, or the last one; a disk that refuses costs one warning."""
        begin = self._clock()
        if begin < self._next and not is_last:
            return
        try:
            write_whole(self._path, openmetrics_text(gauges(), *self._labels, time.time()).encode(errors="replace"))
        except OSError as error:
            if not self._has_warned:
                self._warn(f"{self._path} cannot be written ({error.strerror}); training goes on without it.")
            self._has_warned = True
        self._next = begin + max(INTERVAL, (self._clock() - begin) / _SHARE)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
