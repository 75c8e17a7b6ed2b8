"""Connection to Ray: an instance for the length of a command, or an existing cluster."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ditlab.cluster.access import cluster_token, own_token, token_refused, users_token
from ditlab.cluster.local_start import start_local_ray
from ditlab.errors import UserError, first_line

_log = logging.getLogger("ditlab")

# Set before Ray is imported. The first: a report costs one poll of the controller (2 s by default); the others start
# watchers and metric exporters that a training run has no use for.
SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread of Tune's that outlives a session would start a Ray of its own
    "RAY_worker_niceness": "0",  # 15 by default: a training would stand back for anything else on the machine
}


def cluster_address(address: str | None) -> str | None:
    """Address of the cluster to use: the given one, else that of the Ray job this process runs in; None for neither."""
    return address or os.environ.get("RAY_ADDRESS") or None


def is_connected() -> bool:
    """Return True if this process is connected to Ray; does not import Ray to find out."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def check_address(address: str, timeout: float = 5.0) -> None:
    """Raises UserError where nothing listens at `host:port` or `ray://host:port`; Ray itself would try for 30 minutes.

    `auto` and `local` are Ray's to resolve.
    """
    if address.startswith(("http://", "https://")):
        raise UserError(
            f"--address {address} is that of a job server, which takes jobs: `ditlab submit SPEC --address {address}`; "
            "to train from here, write HOST:PORT (Ray's default port is 6379)."
        )
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return
    if not (host and colon and port.isascii() and port.isdigit()):
        raise UserError(f"--address {address} is no Ray address; write HOST:PORT (Ray's default port is 6379) or auto.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--address {address}: no Ray cluster answers there ({error}); start one (`ray start --head`), "
            "correct the address, or leave --address out to train on this machine alone."
        ) from error


def job_server_address() -> str:
    """HOST:PORT of the connected cluster's job server; empty where there is none."""
    import ray

    return str(ray._private.worker._global_node.webui_url or "")  # no public name exists


@contextmanager
def ray_session(address: str | None, num_cpus: int, warn: Callable[[str], None] | None = None) -> Iterator[Any]:
    """Connect to Ray for the length of the block; yields the module `ray`.

    Without an address, start an instance with at least `num_cpus` CPUs that admits this process alone, and stop it at
    the end. An existing connection of this process is used as it is. `warn` receives a line for each start that took
    too long; None: the logger `ditlab`.

    Raises UserError where nothing answers at the address, or the cluster refuses the token, and RunFailed where Ray
    does not start on this machine.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if address is not None:
        check_address(address)
    import ray

    if ray.is_initialized():  # a caller's session, such as a test's
        yield ray
        return
    with _token(address):
        _connect(ray, address, num_cpus, warn or _log.warning)
        # Ray prints a paragraph on standard output for every process that dies: `runs.failures` has a sentence for it.
        printer = vars(ray._private.worker)
        before, printer["print_to_stdstream"] = printer["print_to_stdstream"], lambda *_, **__: None
        try:
            yield ray
        finally:
            ray.shutdown()
            printer["print_to_stdstream"] = before


def _token(address: str | None) -> AbstractContextManager[None]:
    """Context with the token that this connection needs."""
    if address is None:
        return own_token()
    # Only Ray resolves `auto` and `local`; `ray://` is its client's server, which answers no such question.
    return users_token() if address in ("auto", "local") or address.startswith("ray://") else cluster_token(address)


def _connect(ray: Any, address: str | None, num_cpus: int, warn: Callable[[str], None]) -> None:
    """Initialise Ray. Raises as `ray_session` does."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    if address is None:
        cores = max(num_cpus, os.cpu_count() or 1)
        # `local`, or Ray would join whatever cluster it finds traces of on this machine.
        start_local_ray(ray, {"address": "local", "num_cpus": cores, "include_dashboard": False, **quiet}, warn)
        return
    try:
        ray.init(address=address, **quiet)
    except ray.exceptions.AuthenticationError:
        raise token_refused(address) from None
    except (ConnectionError, RuntimeError, TimeoutError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(
            f"--address {address}: no Ray cluster answers there ({first_line(error)}); start one or leave --address "
            "out."
        ) from error
