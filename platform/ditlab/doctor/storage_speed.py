"""Measured on a node: how fast it writes to and reads from a place that all nodes share; whether MLflow answers it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from ditlab.checkpoints.store import CheckpointStore
from ditlab.storage.remote import RemoteFiles
from ditlab.tracking.access import check_access, check_reachable

CHUNK, NUM_CHUNKS = 8 << 20, 8  # 64 MiB: seconds on a slow disk, and more than its controller keeps
SIZE = CHUNK * NUM_CHUNKS


def write_speed(place: str, name: str) -> float:
    """Bytes a second into a new file, which is on disk, or whole in the object store, at the end."""
    chunk = os.urandom(CHUNK)  # zeros would be compressed away by some disks
    began = time.perf_counter()
    CheckpointStore.at(place).files.write("", name, (chunk for _ in range(NUM_CHUNKS)))
    return SIZE / (time.perf_counter() - began)


def read_speed(place: str, name: str) -> float:
    """Bytes a second out of a file that another node has written; what this node's memory holds of it is dropped."""
    files = CheckpointStore.at(place).files
    if not isinstance(files, RemoteFiles):
        _forget(files.path / name)
    began = time.perf_counter()
    size = sum(map(len, _chunks(place, name)))
    assert size == SIZE, f"{size} bytes of {SIZE} were read"
    return size / (time.perf_counter() - began)


def _chunks(place: str, name: str) -> Iterator[bytes]:
    return CheckpointStore.at(place).files.chunks("", name)


def _forget(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def tracking_problem(uri: str) -> str:
    """Why MLflow takes nothing from this node, with this node's credentials; empty where it does."""
    if reason := check_reachable(uri):
        return f"does not answer ({reason})"
    return check_access(uri) or ""
