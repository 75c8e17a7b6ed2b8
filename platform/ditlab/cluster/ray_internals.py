"""Names of Ray that are no part of its interface: the one file that uses them, but for what a
subclass inherits.

Each function imports what it needs, so that this module costs nothing. `INTERNALS` lists the names;
a test fails when one of them moves, and `ray_internal` says so in a sentence where a command meets
it first.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from ditlab.runs.signals import WORKER_SIGNALS, renew_handlers

TESTED = "2.60"
"""Version of Ray whose internals these are."""
INTERNALS = {
    "set_kill_on_parent_death_linux": "ray._private.utils",
    "set_sigterm_handler": "ray._private.utils",
    "is_token_auth_enabled": "ray._private.authentication.authentication_utils",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "ray._private.ray_constants",
    "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "ray._private.ray_constants",
    "get_runtime_env_default_excludes": "ray._private.ray_constants",
    "_dir_travel": "ray._private.runtime_env.packaging",
    "_get_excludes": "ray._private.runtime_env.packaging",
    "state.get_draining_nodes": "ray._private.state",
    "_global_node": "ray._private.worker",
    "print_to_stdstream": "ray._private.worker",
    "AuthenticationTokenLoader": "ray._raylet",
    "Config": "ray._raylet",
    "PlacementGroupID": "ray._raylet",
    "get_or_create_autoscaling_coordinator": (
        "ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator"
    ),
    "_internal_kv_del": "ray.experimental.internal_kv",
    "_internal_kv_get": "ray.experimental.internal_kv",
    "_internal_kv_list": "ray.experimental.internal_kv",
    "_internal_kv_put": "ray.experimental.internal_kv",
    "WorkerGroupStartupFailedError": "ray.train.v2._internal.exceptions",
    "WorkerGroupStartupTimeoutError": "ray.train.v2._internal.exceptions",
    "WorkerHealthCheckTimeoutError": "ray.train.v2._internal.exceptions",
    "TuneController._schedule_trial_train": "ray.tune.execution.tune_controller",
    "PopulationBasedTraining._get_new_config": "ray.tune.schedulers.pbt",
    "PopulationBasedTraining._save_trial_state": "ray.tune.schedulers.pbt",
}
"""Module of each name; `sweeps.search` inherits those of PopulationBasedTraining."""


def ray_internal(name: str) -> Any:
    """Import one of INTERNALS. Raises RuntimeError, with the version, where this Ray has moved
    it.
    """
    module = INTERNALS[name]
    try:
        return attrgetter(name)(import_module(module))
    except (ImportError, AttributeError) as error:
        import ray

        raise RuntimeError(
            f"Ray {ray.__version__} has moved {module}.{name}, which DiTLab uses of Ray "
            f"{TESTED} ({error}); pip install 'ray[train,tune]=={TESTED}.*'."
        ) from error


def reload_token() -> None:
    """Make Ray read mode and token again; by itself it does so once a process."""
    ray_internal("Config").initialize("")
    ray_internal("AuthenticationTokenLoader").instance().reset_cache()


def sent_files(root: Path) -> set[Path]:
    """Every file below a job's working directory that Ray sends along, as its uploading does."""
    excludes = ray_internal("_get_excludes")(
        root, ray_internal("get_runtime_env_default_excludes")()
    )
    sends_ignored = os.environ.get(ray_internal("RAY_RUNTIME_ENV_IGNORE_GITIGNORE")) == "1"
    found: set[Path] = set()
    ray_internal("_dir_travel")(
        root,
        [excludes],
        found.add,
        include_gitignore=not sends_ignored,
        logger=logging.getLogger("ditlab.ray"),  # Ray's own names every ignore file
    )
    return {path for path in found if path.is_file()}


def quiet_deaths() -> AbstractContextManager[None]:
    """Drop the paragraph that Ray prints on standard output for every process that dies."""
    return _replaced("print_to_stdstream", lambda *_, **__: None)


def without_uv() -> AbstractContextManager[None]:
    """Start Ray below `uv run` as anywhere else: it would pack the working folder for workers, and
    run uv in each.
    """
    # Ray reads the variable at its import alone
    return _replaced("RAY_ENABLE_UV_RUN_RUNTIME_ENV", False)


@contextmanager
def _replaced(name: str, value: Any) -> Iterator[None]:
    module = vars(import_module(INTERNALS[name]))
    before = ray_internal(name)
    module[name] = value
    try:
        yield
    finally:
        module[name] = before


@contextmanager
def killed_with_this_process() -> Iterator[int]:
    """Kill groups of processes once this process is gone, however it ends, or the block is over.

    Their leaders' ids, a line each, are written into the descriptor that is yielded. The kernel
    kills what this process has started; Ray's agents, which the raylet starts, wait for up to three
    minutes for a head that is gone as well.
    """
    script = (
        "trap '' HUP INT TERM; while read one; do all=\"$all -$one\"; done; kill -s KILL -- $all"
    )
    shell = subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert shell.stdin
    try:
        yield shell.stdin.fileno()
    finally:
        shell.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # a forked process may hold the other end
            shell.wait(1.0)


@contextmanager
def own_sessions(leaders: int | None = None) -> Iterator[None]:
    """Make each process that Ray starts in the block lead a session of its own, deaf to signals
    that ask it to end.

    A signal to the launcher's group, or to every process of its control group, then leaves Ray to
    the launcher, which needs it to save; the kernel still kills Ray's processes where the launcher
    dies. Handlers of SIGTERM stay ours: that of Ray's C++ part is replaced at the end of the block.
    `leaders`: the descriptor of `killed_with_this_process`.
    """
    die_with_parent = ray_internal("set_kill_on_parent_death_linux")

    def prepare() -> None:  # in the new process, before its program
        os.setsid()
        if leaders is not None:
            os.write(leaders, b"%d\n" % os.getpid())
        signal.pthread_sigmask(signal.SIG_BLOCK, WORKER_SIGNALS)
        die_with_parent()

    try:
        with (
            _replaced("set_kill_on_parent_death_linux", prepare),
            _replaced("set_sigterm_handler", lambda _: None),
        ):
            yield
    finally:
        renew_handlers()


def instance_processes() -> dict[str, subprocess.Popen[bytes]]:
    """Processes that this one has started for its Ray instance, by Ray's names such as `raylet`."""
    found = {}
    node = ray_internal("_global_node")
    if node:
        for name, processes in node.all_processes.items():
            for each in processes:
                found[name] = each.process
    return found


def schedule_training(controller: Any, trial: Any) -> None:
    """Make Tune's controller train a trial that waits in its process."""
    ray_internal("TuneController._schedule_trial_train")
    controller._schedule_trial_train(trial)


def key_value(operation: str) -> Callable[..., Any]:
    """Return an operation on the cluster's key-value store, in a namespace of our own: `put`,
    `get`, `list`, `del`.
    """
    return partial(ray_internal(f"_internal_kv_{operation}"), namespace=b"ditlab")
