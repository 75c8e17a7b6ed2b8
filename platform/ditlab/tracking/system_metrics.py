"""Metrics of the machine's load, measured by MLflow's own monitors, under MLflow's names, into the
journal.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.mlflow_connection import load_mlflow

LONGEST_HELD = 10.0
"""Seconds that threads wait for an event before they begin: MLflow shows a run whose first step
takes longer.
"""
_STOP_TIMEOUT = 5.0  # seconds for a slow sensor
_log = logging.getLogger("ditlab.tracking")


class SystemMetrics:
    """A thread that samples CPU, memory, disk, network and, where there are any, GPUs.

    Names are `system/cpu_utilization_percentage` and so on; with several nodes `system/<node>/...`.
    As in MLflow, the step counts samples, on and on over resumes.
    """

    def __init__(
        self, journal: JournalWriter, interval: float, node: str | None, begin: threading.Event
    ) -> None:
        """Start sampling every `interval` seconds; `begin` holds the first sample back."""
        self._journal = journal
        self._interval = interval
        self._begin = begin
        self._prefix = f"system/{node}/" if node else "system/"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ditlab-system-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; waits for a sample under way, up to `_STOP_TIMEOUT` seconds."""
        self._stop.set()
        self._begin.set()
        self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        self._begin.wait(LONGEST_HELD)
        try:
            load_mlflow()
            from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
            from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
            from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
            from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
            from mlflow.system_metrics.metrics.rocm_monitor import ROCMMonitor

            monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
            for gpus in (GPUMonitor, ROCMMonitor):
                try:
                    monitors.append(gpus())
                    break
                except Exception as error:
                    _log.debug("no %s: %s", gpus.__name__, error)
            last = self._journal.last_step(self._prefix)
            # Utilisation is counted between two samples: the first one has nothing to count from,
            # and is not logged.
            step = -1 if last is None else last
            interval = 0.0
            while not self._stop.wait(interval):
                values: dict[str, float] = {}
                for monitor in monitors:
                    monitor.collect_metrics()
                    values |= monitor.aggregate_metrics()
                    monitor.clear_metrics()
                if interval:
                    step += 1
                    self._journal.log_metrics(
                        step, {self._prefix + name: value for name, value in values.items()}
                    )
                interval = self._interval
        except Exception:
            # A sensor that breaks must not end a run.
            _log.warning("system metrics stopped", exc_info=True)
