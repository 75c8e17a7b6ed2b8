"""Package of a job: its working directory, and DiTLab's own code where that runs from source."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditlab.errors import UserError

MAX_BYTES = 512 * 2**20
"""Size of the largest package that a job server accepts, in bytes."""
STOP_TIMEOUT = 600
"""Seconds that a stopped job has for its last checkpoint; Ray would kill it after 3 s."""

_quiet = logging.getLogger("ditlab.upload")
_quiet.setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class JobPackage:
    """Files of a working directory that travel with a job."""

    root: Path
    files: dict[str, int]
    """Size in bytes of each file, by its path below the root."""

    @property
    def size(self) -> int:
        return sum(self.files.values())

    def check(self, limit: int = MAX_BYTES) -> None:
        """Raises UserError, naming the largest files, for a package that a job server would refuse."""
        if self.size <= limit:
            return
        largest = sorted(self.files.items(), key=lambda item: item[1], reverse=True)[:5]
        named = ", ".join(f"{name} ({_mib(size)})" for name, size in largest)
        raise UserError(
            f"--working-dir {self.root} is too large for a job: {_mib(self.size)} in {len(self.files):,} files, and "
            f"{_mib(limit)} can travel; the largest are {named}. Name what the job does not need in .rayignore, keep "
            "data at a URI (docs/data.md), or name a smaller --working-dir."
        )


def package_files(root: Path) -> JobPackage:
    """Files that Ray would pack of a folder: all but those that .rayignore and .gitignore name.

    Raises UserError where the folder cannot be read.
    """
    # The walk that packs it: its rules for ignored files are Ray's own.
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    files: dict[str, int] = {}

    def note(path: Path) -> None:
        if path.is_file():
            files[str(path.relative_to(root))] = path.stat().st_size

    respects_git = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
    try:
        excludes = [_get_excludes(root, get_runtime_env_default_excludes())]
        _dir_travel(root, excludes, note, include_gitignore=respects_git, logger=_quiet)
    except OSError as error:
        raise UserError(f"--working-dir {root} cannot be read ({error.strerror}); name another folder.") from error
    return JobPackage(root, files)


def runtime_env(root: Path) -> dict[str, Any]:
    """Runtime environment of a job in a copy of `root`: that of `platform/runtime_env.yaml`, wherever DiTLab lies."""
    environment: dict[str, Any] = {
        "working_dir": str(root),
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_TIMEOUT)},
    }
    source = checkout()
    if source == root:
        environment["env_vars"]["PYTHONPATH"] = "platform:models"
    elif source:
        environment["py_modules"] = [str(source / "platform" / "ditlab"), str(source / "models" / "denoisers")]
    return environment


def checkout() -> Path | None:
    """Root of the checkout that DiTLab runs from; None for an installed package, which the nodes then need as well."""
    source = Path(__file__).resolve().parents[3]
    is_source = (source / "platform" / "ditlab").is_dir() and (source / "models" / "denoisers").is_dir()
    return source if is_source else None


def _mib(size: int) -> str:
    """Size in MiB or KiB, for messages."""
    return f"{size / 2**20:,.0f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB"
