"""A small disk of one's own that can be full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A tmpfs at `path`."""

    path: Path

    def resize(self, size: str) -> None:
        """`20m` and the like."""
        subprocess.run(["mount", "-o", f"remount,size={size}", self.path], check=True, timeout=20)

    def fill(self) -> None:
        """Takes every byte that is left."""
        descriptor, chunk = (
            os.open(self.path / "filler", os.O_CREAT | os.O_WRONLY | os.O_APPEND),
            1 << 20,
        )
        try:
            while chunk:
                try:
                    os.write(descriptor, b"x" * chunk)
                except OSError:
                    chunk //= 2
        finally:
            os.close(descriptor)

    def make_room(self) -> None:
        """Gives back what `fill` took."""
        (self.path / "filler").unlink()


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """Mounts a tmpfs of `size` (`2m`) at `path`; skips the test where that is not allowed."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        pytest.skip(f"no mount command: {error}")
    if done.returncode:
        pytest.skip(f"a disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: MLflow keeps its database open for as long as the process lives.
        subprocess.run(["umount", "--lazy", path], check=True, timeout=20)
