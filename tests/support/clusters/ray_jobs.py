"""Trainings and sweeps as Ray jobs on a cluster of `nodes`, submitted by the README's line, watched
through the job server."""

import logging
import os
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from support.clusters.nodes import CHECKOUT, RayNodes, wait_for

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def package_files(root: Path) -> set[str]:
    """Files that Ray packs of a folder, by their paths in it."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    found: list[Path] = []
    ignored = [_get_excludes(root, get_runtime_env_default_excludes())]
    _dir_travel(
        root, ignored, found.append, include_gitignore=True, logger=logging.getLogger("packed")
    )
    return {str(path.relative_to(root)) for path in found if path.is_file()}


class RayJob:
    """One job, from `ray job submit --no-wait` on."""

    def __init__(self, cluster: RayNodes, words: Sequence[str | Path]) -> None:
        self._cluster, self.id = cluster, f"job-{secrets.token_hex(4)}"
        self.server = cluster.jobs
        command = [
            cluster.python,
            "-m",
            "ray.scripts.scripts",
            "job",
            "submit",
            "--address",
            self.server,
            "--no-wait",
            "--submission-id",
            self.id,
            "--working-dir",
            ".",
            "--runtime-env",
            "platform/runtime_env.yaml",
            "--",
            "python",
            "-m",
            "ditlab",
            *map(str, words),
        ]
        environment = {**os.environ, **cluster.access}
        said = "No available agent"  # the head's answer in its first seconds
        deadline = time.monotonic() + 60
        while "No available agent" in said and time.monotonic() < deadline:
            done = subprocess.run(
                command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120
            )
            said = done.stdout + done.stderr
        assert done.returncode == 0, said

    def status(self) -> str:
        """The job server's word; empty where it does not answer."""
        return str((self._cluster.get(f"/api/jobs/{self.id}") or {}).get("status", ""))

    def has_ended(self) -> bool:
        return self.status() in ENDED

    def log(self) -> str:
        """Output of the command."""
        return str((self._cluster.get(f"/api/jobs/{self.id}/logs") or {}).get("logs", ""))

    def stop(self) -> None:
        """Stop the job as `ray job stop` does: SIGTERM, then SIGKILL after the time in its runtime
        environment.
        """
        request = urllib.request.Request(
            f"{self.server}/api/jobs/{self.id}/stop",
            method="POST",
            headers={"Authorization": f"Bearer {self._cluster.token}"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def wait(self, seconds: float) -> str:
        """Its status once it has ended. Raises AssertionError with the log where it goes on for
        longer.
        """
        try:
            wait_for(self.has_ended, seconds, f"the end of {self.id}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None
        return self.status()
