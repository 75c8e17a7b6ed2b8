"""Jobs of a Ray cluster: the package of their code, their submission, and their log to the end.

A package is a job's working directory, and DiTLab's own code where that runs from source.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ditlab.cluster.access import environment_of, named, token_refused, users_token
from ditlab.errors import RunFailed, UserError, first_line
from ditlab.home import Home
from ditlab.tracking.access import exempt_from_proxies
from ditlab.tracking.records import this_process

STOP_TIMEOUT = 600
"""Seconds that a stopped job has for its last checkpoint; Ray would kill it after 3 s."""

SUBMITTER = "DITLAB_SUBMITTER"
"""Variable of a job that says where the submitter's home is."""

_STOP_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
_STOP_RESERVE = 10  # seconds of a job's end that are not the run's

API_SERVER = "RAY_API_SERVER_ADDRESS"
"""Variable of Ray that names a job server."""
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
"""Address of a cluster's job server through the tunnel that `ray dashboard cluster.yaml` opens."""
REQUEST_TIMEOUT = 10.0  # seconds for an answer of the job server
AWAY_TIMEOUT = 30.0  # seconds for which a job server that answered before may be away
_BROKEN_PAUSE = 10.0
"""Seconds between two requests for a whole log whose stream breaks off: Ray's client takes no more
than 4 MiB in a message, and a line is one.
"""
_STARTING = "No available agent"  # a head's answer in its first seconds
_LOGGERS = (
    "ray",
    "ray.dashboard",
    "ray.job_submission",
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
)
"""Loggers of Ray's client, which names every file that it does not upload."""
END_STATUSES = ("SUCCEEDED", "FAILED", "STOPPED")


def default_address() -> str:
    """Address of the job server where no option names one."""
    return os.environ.get(API_SERVER) or DEFAULT_ADDRESS


def describe_submitter(home: Home) -> str:
    """Return the value of `SUBMITTER`: where the submitter's home is, and a folder by which a job
    recognises it.
    """
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    facts = {
        "home": str(home.root),
        "is_named": "DITLAB_HOME" in os.environ,
        "folder": str(folder),
        "identity": _identity(folder),
    }
    return json.dumps(facts)


def _identity(folder: Path) -> list[str | int]:
    """Return what no other folder has, of this machine or another. Raises OSError where it is not
    there.
    """
    state = folder.stat()
    return [this_process()["boot"], state.st_dev, state.st_ino]


def take_submitters_home() -> None:
    """Set DITLAB_HOME as the submitter has it, where this job runs on the same machine and sees the
    same folder.

    Elsewhere the nodes' own stays; so it does where the submitter has none but the default.
    """
    try:
        facts = json.loads(os.environ[SUBMITTER])
        is_here = _identity(Path(facts["folder"])) == facts["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if is_here and (facts["is_named"] or "DITLAB_HOME" not in os.environ):
        os.environ["DITLAB_HOME"] = facts["home"]


def leave_out(home: Path, root: Path) -> None:
    """Keep a home that lies below a working directory from being sent along: all its runs would
    travel with each job.

    A file in it does so. `excludes` of a runtime environment would hold for DiTLab's modules too,
    and one is `runs`.
    """
    if home == root or not home.is_relative_to(root) or not home.is_dir():
        return
    with suppress(OSError):  # it cannot be written: what then is too large is refused
        (home / ".rayignore").write_text("*\n", encoding="utf-8")


def job_environment(root: Path, home: str | None, grace: float) -> dict[str, Any]:
    """Runtime environment of a job that keeps its runs in `home`; None: in a home of this machine
    or of the nodes.

    A stopped job has `grace` seconds at least. Raises UserError for a relative home.
    """
    if home is not None and not home.startswith("/"):
        raise UserError(
            f"--home {home} is no absolute path; write the one by which all nodes see the folder."
        )
    own = Home.named_by_environment()
    if home:
        variables = {"DITLAB_HOME": home}
    else:
        variables = {SUBMITTER: describe_submitter(own)}
    variables[_STOP_VARIABLE] = f"{max(grace + _STOP_RESERVE, STOP_TIMEOUT):g}"
    leave_out(own.root, root)
    return runtime_env(root, variables)


def runtime_env(root: Path, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runtime environment of a job in a copy of `root`: that of `platform/runtime_env.yaml`,
    wherever DiTLab lies, with `more` variables."""
    variables = {
        _STOP_VARIABLE: str(STOP_TIMEOUT),
        "DITLAB_GRACE": str(STOP_TIMEOUT - _STOP_RESERVE),
        **(more or {}),
    }
    source = Path(__file__).resolve().parents[3]
    modules = [source / "platform" / "ditlab", source / "models" / "ditlab_models"]
    addons = source / "platform" / "ditlab_addons"
    environment: dict[str, Any] = {"working_dir": str(root), "env_vars": variables}
    if source == root:
        variables["PYTHONPATH"] = "platform:models"
    elif all(module.is_dir() for module in modules):
        if addons.is_dir():
            modules.append(addons)
        environment["py_modules"] = [str(module) for module in modules]
    # else an installed package, which the nodes then need as well
    return environment


@dataclass(frozen=True)
class JobResult:
    """End of a job."""

    status: str
    """Status by Ray's name: SUCCEEDED, FAILED or STOPPED."""
    exit_code: int
    """Exit code of the command; 130 for a job that was stopped."""
    message: str
    """Message of Ray about a failure."""


@contextmanager
def open_job_server(address: str) -> Iterator[JobServer]:
    """Connect to a cluster's job server for the length of the block, in which requests send the
    user's token.

    Raises UserError for an invalid address, where nothing answers, the token is refused, or Ray's
    job client is not installed.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"{named(address)} is no address of a job server; write http://HOST:PORT (its port "
            "is 8265 by default, and `ray dashboard cluster.yaml` brings it to "
            f"{DEFAULT_ADDRESS})."
        )
    address = address.rstrip("/")
    exempt_from_proxies()
    with users_token():
        try:
            from ray.exceptions import AuthenticationError
            from ray.job_submission import JobSubmissionClient

            for name in _LOGGERS:
                logging.getLogger(name).setLevel(logging.ERROR)
        except ImportError as error:
            raise UserError(
                f"jobs need a part of Ray that is not installed here ({error}); pip install "
                "'ditlab[cluster]'."
            ) from None
        try:
            default_port = 443 if parts.scheme == "https" else 80
            place = (parts.hostname, parts.port or default_port)
            socket.create_connection(place, REQUEST_TIMEOUT).close()
            # Ray's client takes these variables in place of the address that it is given
            with environment_of({API_SERVER: address}):
                client = JobSubmissionClient(address)
        except AuthenticationError:
            raise token_refused(address) from None
        except _client_errors() as error:
            raise UserError(
                f"{named(address)}: no job server of Ray answers there ({first_line(error)}); "
                "start the cluster (`ray up cluster.yaml`), open the tunnel to it (`ray "
                "dashboard cluster.yaml`), or correct the address."
            ) from None
        yield JobServer(address, client)


@dataclass(frozen=True)
class JobServer:
    """Job server of a cluster, to which `open_job_server` connects."""

    address: str
    client: Any
    """Ray's client."""

    def submit(self, name: str, command: Sequence[str], environment: Mapping[str, Any]) -> str:
        """Upload the working directory of a runtime environment, and start the command in a copy;
        returns the job's id.

        Raises UserError where the job server refuses the job.
        """
        job = f"{name}-{secrets.token_hex(4)}"
        deadline = time.monotonic() + AWAY_TIMEOUT
        with self._reporting("does not take the job"):
            while True:
                try:
                    self.client.submit_job(
                        entrypoint=shlex.join(command),
                        submission_id=job,
                        runtime_env=dict(environment),
                        metadata={"ditlab.name": name},
                    )
                    return job
                except RuntimeError as error:
                    if _STARTING not in str(error) or time.monotonic() > deadline:
                        raise
                time.sleep(1.0)

    def follow(self, job: str, on_text: Callable[[str], None]) -> JobResult:
        """Pass the job's output to `on_text` until the job has ended. Raises RunFailed where the
        job server is lost.
        """
        status, message, code = asyncio.run(self._follow(job, on_text))
        if status == "STOPPED":
            return JobResult(status, 130, message)
        if status == "SUCCEEDED":
            return JobResult(status, 0, message)
        return JobResult(status, code if code in (2, 130) else 1, message)

    def state(self, job: str) -> tuple[str, str, int | None]:
        """Status of a job, Ray's message about it, and the command's exit code."""
        with self._reporting(f"has no information on job {job}", error=RunFailed):
            details = self.client.get_job_info(job)
            return str(details.status.value), details.message or "", details.driver_exit_code

    async def _follow(
        self, job: str, on_text: Callable[[str], None]
    ) -> tuple[str, str, int | None]:
        """Pass on the log, each text once, and return the state at the job's end.

        Where the stream breaks off, at a line that it does not take or at an outage, the rest is
        that of the whole log.
        """
        seen = 0
        away = 0.0
        while away < AWAY_TIMEOUT:
            fresh = 0
            try:
                with suppress(*_client_errors()):
                    async for text in self.client.tail_job_logs(job):
                        fresh += len(text)
                        if fresh > seen:  # a new stream begins at the log's beginning
                            on_text(text[-(fresh - seen) :])
                            seen = fresh
                state = self.state(job)
                rest = self.client.get_job_logs(job)[seen:]
                if rest:
                    on_text(rest)
                    seen += len(rest)
                if state[0] in END_STATUSES:
                    return state
                away = 0.0
            except _client_errors():
                away += 1.0
            await asyncio.sleep(1.0 if fresh >= seen or away else _BROKEN_PAUSE)
        raise RunFailed(
            f"the job server at {self.address} does not answer any more, and job {job} may go "
            f"on without it: `ray job logs --follow {job} --address {self.address}` once it is "
            "back; if the head is gone, submit the same again with --resume auto.",
            kind="lost_node",
        )

    @contextmanager
    def _reporting(self, what: str, error: type[Exception] = UserError) -> Iterator[None]:
        """Turn an exception of Ray's client in the block into an `error` that names the address and
        `what` failed.
        """
        try:
            yield
        except _client_errors() as error_found:
            reason = first_line(error_found)
            raise error(f"{named(self.address)}: the job server {what} ({reason}).") from None


def _client_errors() -> tuple[type[Exception], ...]:
    """Exceptions of Ray's client, and of its two HTTP libraries, for a job server that does not
    answer as it should.
    """
    import aiohttp
    import requests

    return (
        OSError,
        RuntimeError,
        ValueError,
        RunFailed,
        aiohttp.ClientError,
        requests.RequestException,
    )
