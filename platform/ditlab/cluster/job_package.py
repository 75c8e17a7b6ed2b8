"""What travels to a cluster with a job: a working directory, and DiTLab's own code where this one runs from source."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ditlab
from ditlab.errors import UserError

LIMIT = 512 * 2**20
"""Bytes: the largest package that a job server takes."""
STOP_SECONDS = 600
"""What a stopped job has for its last checkpoint; Ray would kill it after 3 s."""

_quiet = logging.getLogger("ditlab.upload")
_quiet.setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Upload:
    """Files of a working directory."""

    root: Path
    files: dict[str, int]
    """Path below the root -> bytes."""

    @property
    def size(self) -> int:
        return sum(self.files.values())

    def check(self, limit: int = LIMIT) -> None:
        """Raises UserError, naming the largest files, where a job server would refuse it."""
        if self.size <= limit:
            return
        largest = sorted(self.files.items(), key=lambda item: item[1], reverse=True)[:5]
        named = ", ".join(f"{name} ({_mib(size)})" for name, size in largest)
        raise UserError(
            f"--working-dir {self.root} is too large for a job: {_mib(self.size)} in {len(self.files):,} files, and "
            f"{_mib(limit)} can travel; the largest are {named}. Name what the job does not need in .rayignore, keep "
            "data at a URI (docs/data.md), or name a smaller --working-dir."
        )


def upload_of(root: Path) -> Upload:
    """What Ray would pack of a folder: all but what .rayignore and .gitignore name.

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
    return Upload(root, files)


def runtime_env(root: Path) -> dict[str, Any]:
    """Of a job that runs in a copy of `root`: as `platform/runtime_env.yaml` says, wherever this DiTLab lies."""
    environment: dict[str, Any] = {
        "working_dir": str(root),
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)},
    }
    source = checkout()
    if source == root:
        environment["env_vars"]["PYTHONPATH"] = "platform:models"
    elif source:
        environment["py_modules"] = [str(source / "platform" / "ditlab"), str(source / "models" / "denoisers")]
    return environment


def checkout() -> Path | None:
    """The root of the checkout that this DiTLab runs from; None where it was installed as a package, which the nodes
    then need, too."""
    source = Path(ditlab.__file__).resolve().parents[2]
    is_source = (source / "platform" / "ditlab").is_dir() and (source / "models" / "denoisers").is_dir()
    return source if is_source else None


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB"
