"""The door to the worker body. Ray imports the module of a training function in processes that never train, too."""

from typing import Any


def run_worker(config: dict[str, Any]) -> None:
    """Ray Train's training function."""
    from ditlab.cluster.workers.body import run_worker

    run_worker(config)
