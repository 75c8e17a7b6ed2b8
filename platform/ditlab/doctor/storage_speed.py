"""Measurements on a node: its speed of writing to and reading from shared storage, and its access to MLflow."""

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
    """Bytes a second of writing a new file, until it is on disk or whole in the object store."""
    chunk = os.urandom(CHUNK)  # zeros would be compressed away by some disks
    began = time.perf_counter()
    CheckpointStore.at(place).files.write("", name, (chunk for _ in range(NUM_CHUNKS)))
    return SIZE / (time.perf_counter() - began)


def read_speed(place: str, name: str) -> float:
    """Bytes a second of reading a file that another node has written; this node's page cache of it is dropped."""
    files = CheckpointStore.at(place).files
    if not isinstance(files, RemoteFiles):
        _drop_page_cache(files.path / name)
    began = time.perf_counter()
    size = sum(map(len, _chunks(place, name)))
    assert size == SIZE, f"{size} bytes of {SIZE} were read"
    return size / (time.perf_counter() - began)


def _chunks(place: str, name: str) -> Iterator[bytes]:
    return CheckpointStore.at(place).files.chunks("", name)


def _drop_page_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def tracking_problem(uri: str) -> str:
    """Reason why MLflow refuses this node with its own credentials; empty where it accepts it."""
    if reason := check_reachable(uri):
        return f"does not answer ({reason})"
    return check_access(uri) or ""
