"""Parts of a worker group that Ray's own processes import: the training function, and the start of
the process group.

Imports little of DiTLab: Ray Train's controller starts the workers once it has imported this.
"""

import os
import signal
from dataclasses import dataclass
from typing import Any

from ray.train.torch import TorchConfig


def run_worker(config: dict[str, Any]) -> None:
    """Ray Train's training function; imports the worker body when a worker starts."""
    from ditlab.cluster.worker_body import run_worker

    run_worker(config)


def prepare_worker(home: str) -> None:
    """Give a worker the launcher's DITLAB_HOME, and take a signal to end as a request to save.

    Called in a worker's main thread, where Ray waits for calls, before more of DiTLab is imported.
    """
    os.environ["DITLAB_HOME"] = home  # in a job it may be in the launcher's environment alone
    from ditlab.cluster.channel import terminated
    from ditlab.runs.signals import WORKER_SIGNALS

    # before they are let in: by default each of them ends the process
    for number in WORKER_SIGNALS:
        signal.signal(number, lambda *_: terminated.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKER_SIGNALS)


class _WorkerBackend(TorchConfig().backend_cls):  # type: ignore[misc]  # Ray names the class by this property alone
    """Ray Train's process group of torch, in workers that save where their process is told to
    end.
    """

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_start(worker_group, backend_config)
        worker_group.execute(prepare_worker, backend_config.home)


@dataclass
class WorkerConfig(TorchConfig):
    """Ray Train's configuration of torch, with that process group."""

    home: str = ""
    """Path of the launcher's home."""

    @property
    def backend_cls(self) -> Any:
        return _WorkerBackend
