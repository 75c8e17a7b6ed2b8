"""Entry point of workers. Ray imports a training function's module in processes that never train, too."""

from typing import Any


def run_worker(config: dict[str, Any]) -> None:
    """Ray Train's training function; imports the worker body, and with it torch, when a worker starts."""
    from ditlab.cluster.worker_body import run_worker

    run_worker(config)
