"""Connection to Ray: an instance for the length of a command, or an existing cluster, with its
token.

An instance on this machine is tried again where other work keeps it from starting in Ray's own
time.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from ditlab.cluster.access import (
    cluster_token,
    leave_out,
    named,
    own_token,
    token_refused,
    users_token,
)
from ditlab.cluster.ray_internals import (
    instance_processes,
    killed_with_this_process,
    own_sessions,
    quiet_deaths,
    without_uv,
)
from ditlab.errors import RunFailed, UserError, cannot_write, first_line
from ditlab.parts import absent_part
from ditlab.runs.signals import abandon_exit, end_process, is_ending, renew_handlers
from ditlab.spec.values import format_bytes
from ditlab.tracking.access import exempt_from_proxies

_log = logging.getLogger("ditlab")

# Set before Ray is imported. The first: a report costs one poll of the controller (2 s by default);
# the others start watchers and metric exporters that a training run has no use for.
SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    # a thread of Tune's that outlives a session would start a Ray of its own
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # 15 by default: a training would stand back for anything else on the machine
    "RAY_worker_niceness": "0",
}
LONGEST_FOLDER = 107 - len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Bytes of the folder of an instance's files, by the 107 that Linux allows for the longest of its
sockets.
"""
LEAST_ROOM = 16 << 20
"""Bytes free in that folder below which no instance is started: it would wait for minutes for a
file that cannot be written.
"""
SHARED_MEMORY = "/dev/shm"
LEAST_SHARED = 75 << 20
"""Bytes free in shared memory below which Ray keeps its objects in that folder instead."""
TRIES = 6
"""Attempts to start an instance on this machine, where it is slow."""
_PAUSE = 2.0  # seconds between two attempts
_lost = ""  # see `lost_ray`
_LOOK_INTERVAL = 0.5  # seconds from one check that Ray is alive to the next
_LOST_TIMEOUT = 3.0  # seconds for a command whose Ray has died
_KILL_TIMEOUT = 10.0  # seconds for processes of a failed attempt
# Ray gives each of its processes a fixed time, mostly 30 s, and raises errors of four types, which
# only their words distinguish.
_SLOW = re.compile(
    r"timed? ?out|overloaded|failed to (?:start|connect to) gcs|did not start|not ready",
    re.IGNORECASE,
)


def cluster_address(address: str | None) -> str | None:
    """Address of the cluster to use: the given one, else that of the Ray job this process runs in;
    None for neither.
    """
    return address or os.environ.get("RAY_ADDRESS") or None


def set_defaults(variables: Mapping[str, str]) -> None:
    """Set environment variables that are not set."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def is_connected() -> bool:
    """Return True if this process is connected to Ray; does not import Ray to find out."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def check_address(address: str) -> None:
    """Raises UserError where nothing listens at `host:port` or `ray://host:port`; Ray itself would
    try for 30 minutes.

    `auto` and `local` are Ray's to resolve.
    """
    if address.startswith(("http://", "https://")):
        raise UserError(
            f"{named(address)} is that of a job server, which takes jobs: `ditlab submit SPEC "
            f"--address {address}`; to train from here, write HOST:PORT (Ray's default port is "
            "6379)."
        )
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return
    if not (host and colon and port.isascii() and port.isdigit()):
        raise UserError(
            f"{named(address)} is no Ray address; write HOST:PORT (Ray's default port is 6379) "
            "or auto."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), 5).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"{named(address)}: no Ray cluster answers there ({error}); start one (`ray start "
            f"--head`), correct the address, or {leave_out(address)} to train on this machine "
            "alone."
        ) from error


@contextmanager
def ray_session(
    address: str | None, num_cpus: int, warn: Callable[[str], None] | None = None
) -> Iterator[Any]:
    """Connect to Ray for the length of the block; yields the module `ray`.

    Without an address, start an instance with at least `num_cpus` CPUs that admits this process
    alone, and stop it at the end. An existing connection of this process is used as it is. `warn`
    receives a line for each start that took too long; None: the logger `ditlab`.

    Raises UserError where nothing answers at the address, the cluster refuses the token, or TMPDIR
    is too long for sockets, and RunFailed where Ray does not start on this machine.
    """
    set_defaults(SETTINGS)
    exempt_from_proxies()
    if address is not None:
        check_address(address)
    import ray

    if ray.is_initialized():  # a caller's session, such as a test's
        yield ray
        return
    quiet: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": "ERROR",
        "configure_logging": True,
    }
    with ExitStack() as stack:
        if address is None:
            cores = max(num_cpus, os.cpu_count() or 1)
            _start_instance(ray, stack, quiet, cores, warn or _log.warning)
            death = _dead_process
        else:
            _join_cluster(ray, stack, quiet, address)
            death = _unreachable_head
        stack.enter_context(quiet_deaths())  # `runs.failures` has a sentence for each
        # Ray's C++ part, as it ends, makes SIGTERM end this process without a word
        stack.callback(renew_handlers)
        stack.enter_context(_watched(ray, death))
        yield ray


def _start_instance(
    ray: Any, stack: ExitStack, quiet: dict[str, Any], cores: int, warn: Callable[[str], None]
) -> None:
    """Start an instance on this machine, with what `stack` undoes at the session's end."""
    check_socket_folder()
    check_shared_memory(warn)
    stack.enter_context(own_token())
    stack.enter_context(without_uv())

    def start() -> None:
        check_room()  # other programs may fill the folder between two attempts
        # "local": or Ray would join whatever cluster it finds traces of here
        ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)

    clean = partial(end_attempt, ray, set(psutil.Process().children()))
    with own_sessions(stack.enter_context(killed_with_this_process())):
        try:
            start_with_patience(start, clean, warn)
        except KeyboardInterrupt:
            clean()
            raise


def _join_cluster(ray: Any, stack: ExitStack, quiet: dict[str, Any], address: str) -> None:
    """Connect to a cluster; `stack` takes the token back at the session's end."""
    # Only Ray resolves `auto` and `local`; `ray://` is its client's server, without an answer on
    # tokens.
    is_rays = address in ("auto", "local") or address.startswith("ray://")
    stack.enter_context(users_token() if is_rays else cluster_token(address))
    try:
        with own_sessions():
            ray.init(address=address, **quiet)
    except ray.exceptions.AuthenticationError:
        raise token_refused(address) from None
    except (
        ConnectionError,
        RuntimeError,
        TimeoutError,
        ValueError,
        ray.exceptions.RayError,
    ) as error:
        raise UserError(
            f"{named(address)}: no Ray cluster answers there ({first_line(error)}); "
            f"start one or {leave_out(address)}."
        ) from error


def check_socket_folder() -> None:
    """Raise UserError where the sockets of an instance on this machine do not fit into Ray's
    folder.
    """
    name, folder = _ray_folder()
    if not folder.startswith("/") or len(os.fsencode(folder)) > LONGEST_FOLDER:
        raise UserError(
            f"{name}={folder} is no folder for Ray's sockets (an absolute path of "
            f"{LONGEST_FOLDER} bytes at most); set RAY_TMPDIR to a shorter one, such as /tmp."
        )


def _ray_folder() -> tuple[str, str]:
    """The variable that names the folder of Ray's files, and the folder, as Ray chooses them."""
    name = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    return name, os.environ.get(name, "/tmp")


def check_room() -> None:
    """Raise UserError where the folder of Ray's files is full or cannot be written."""
    name, folder = _ray_folder()
    place = Path(folder)
    place = next(path for path in (place, *place.parents) if path.exists())
    remedy = "set RAY_TMPDIR to another folder, or train without Ray (`ditlab train --local`)"
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(bytes(4096))
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise cannot_write(f"{name}={folder}, where Ray's files lie,", error, remedy) from None
    if free < LEAST_ROOM:
        raise UserError(
            f"{name}={folder}, where Ray's files lie, has {format_bytes(free)} free, and Ray "
            f"needs {format_bytes(LEAST_ROOM)}; make room there, or {remedy}."
        )


def check_shared_memory(warn: Callable[[str], None]) -> None:
    """Warn of shared memory that is too small for Ray's objects, as that of a container may be."""
    if not Path(SHARED_MEMORY).is_dir():  # as on macOS
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < LEAST_SHARED:
        name, folder = _ray_folder()
        warn(
            f"{SHARED_MEMORY} has {format_bytes(free)} free, so that Ray keeps its objects in "
            f"{name}={folder}, which is slower; enlarge it (`docker run --shm-size=1g`, or `mount "
            f"-o remount,size=1g {SHARED_MEMORY}`)."
        )


def lost_ray() -> str:
    """Sentence on the Ray that this process was connected to, where that has died; empty while it
    is there.
    """
    return _lost


@contextmanager
def _watched(ray: Any, death: Callable[[], str]) -> Iterator[None]:
    """Ask for the `death` of Ray during the block; at its end, end the connection and all of Ray.

    After Ray's death one of its calls may wait for a minute, and then end the process with a line
    of its own: a command that is not over some seconds later ends before that.
    """
    global _lost
    _lost = ""
    ended = threading.Event()

    def watch() -> None:
        global _lost
        while not ended.wait(_LOOK_INTERVAL):
            _lost = death()
            if _lost:
                if not ended.wait(_LOST_TIMEOUT):
                    end_process(f"{_lost}; the run stands at its last whole checkpoint.")
                return

    watcher = threading.Thread(target=watch, name="ditlab-ray-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(_LOOK_INTERVAL)
        started = list(instance_processes().values())
        for each in started:
            each.terminate = each.kill  # type: ignore[method-assign]  # they are deaf to SIGTERM (`own_sessions`)
        if _lost:
            abandon_exit()  # Ray's own end waits for what is gone
            for each in started:
                each.kill()
        else:
            ray.shutdown()
        _lost = ""


def _dead_process() -> str:
    """Sentence on a process of the own instance that has died."""
    for name, process in instance_processes().items():
        if name in ("gcs_server", "raylet") and process.poll() is not None:
            return (
                f"Ray on this machine has died (its process {name} ended with code "
                f"{process.returncode})"
            )
    return ""


def _unreachable_head() -> str:
    """Sentence on a cluster whose head takes no connection any more, after a signal: a head may
    start again.
    """
    import ray

    if not is_ending():
        return ""
    address = getattr(ray.get_runtime_context(), "gcs_address", "")
    if not address:  # by `ray://`
        return ""
    for attempt in range(3):
        if attempt:
            time.sleep(_LOOK_INTERVAL)
        with suppress(UserError):
            check_address(address)
            return ""
    return f"the cluster's head at {address} has died"


def start_with_patience(
    start: Callable[[], object], clean: Callable[[], None], warn: Callable[[str], None]
) -> None:
    """Call `start` until it succeeds, a few times where it is slow; `clean` follows each failure.

    Raises UserError as `start` does, and RunFailed where it fails for another reason, or too
    often.
    """
    for left in reversed(range(TRIES)):
        try:
            start()
            return
        except UserError:
            clean()
            raise
        except Exception as error:
            # Ray raises bare Exceptions, and errors of its C++ part: all of them mean that nothing
            # was started.
            clean()
            reason = first_line(error)
            if not left or not _SLOW.search(str(error)):
                doctor = ""
                if not absent_part("command", "doctor"):
                    doctor = "`ditlab doctor` shows what is missing, and "
                raise RunFailed(
                    f"Ray cannot be started on this machine ({reason}); {doctor}`ditlab train "
                    "--local` trains without Ray."
                ) from error
            warn(f"Ray has not started ({reason}), as this machine is busy; trying again.")
            time.sleep(_PAUSE)


def end_attempt(ray: Any, before: Set[Any]) -> None:
    """End what a failed start leaves: Ray's own processes would run on until this process ends."""
    ray.shutdown()
    renew_handlers()
    package = str(Path(ray.__file__).parent)
    left = list[psutil.Process]()
    for child in set(psutil.Process().children()) - before:
        with suppress(psutil.Error):
            if any(part.startswith(package) for part in child.cmdline()):  # its program or script
                left += [child, *child.children(recursive=True)]
    for child in left:
        with suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(left, _KILL_TIMEOUT)
