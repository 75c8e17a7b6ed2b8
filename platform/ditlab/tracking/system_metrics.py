"""Metrics of the machine's load, measured by MLflow's own monitors, under MLflow's names, into the journal."""

from __future__ import annotations

import logging
import threading
from typing import Any

from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.mlflow_connection import load_mlflow

_LONGEST = 10.0  # seconds: where the first step takes longer than that, MLflow shows the run before
_STOP_TIMEOUT = 5.0  # seconds for a slow sensor
_log = logging.getLogger("ditlab.tracking")


class Beginning:
    """Gate of threads, open from the start unless it `is_held`."""

    def __init__(self, is_held: bool = False) -> None:
        self._event = threading.Event()
        if not is_held:
            self.now()

    def now(self) -> None:
        """Open the gate."""
        self._event.set()

    def wait(self) -> None:
        """Wait until the gate is open, 10 seconds at most."""
        self._event.wait(_LONGEST)


class SystemMetrics:
    """A thread that samples CPU, memory, disk, network and, where there are any, GPUs.

    Names are `system/cpu_utilization_percentage` and so on; with several nodes `system/<node>/...`. As in MLflow, the
    step counts samples, on and on over resumes.
    """

    def __init__(self, journal: JournalWriter, interval: float, node: str | None, begin: Beginning) -> None:
        """Start sampling every `interval` seconds; `begin` holds the first sample back."""
        self._journal, self._interval, self._begin = journal, interval, begin
        self._prefix = f"system/{node}/" if node else "system/"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ditlab-system-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; waits for a sample under way, up to `_STOP_TIMEOUT` seconds."""
        self._stop.set()
        self._begin.now()
        self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        self._begin.wait()
        try:
            monitors = _monitors()
            last = self._journal.last_step(self._prefix)
            step = 0 if last is None else last + 1
            # Utilisation is counted between two samples: the first one has nothing to count from.
            _sample(monitors)
            while not self._stop.wait(self._interval):
                values = _sample(monitors)
                self._journal.log_metrics(step, {self._prefix + name: value for name, value in values.items()})
                step += 1
        except Exception:
            # A sensor that breaks must not end a run.
            _log.warning("system metrics stopped", exc_info=True)


def _monitors() -> list[Any]:
    load_mlflow()
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
    from mlflow.system_metrics.metrics.rocm_monitor import ROCMMonitor

    monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    for gpus in (GPUMonitor, ROCMMonitor):
        try:
            monitors.append(gpus())
            break
        except Exception as error:
            _log.debug("no %s: %s", gpus.__name__, error)
    return monitors


def _sample(monitors: list[Any]) -> dict[str, float]:
    values: dict[str, float] = {}
    for monitor in monitors:
        monitor.collect_metrics()
        values |= monitor.aggregate_metrics()
        monitor.clear_metrics()
    return values
