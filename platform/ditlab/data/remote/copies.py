"""Copies of remote stores on a node: each made once, checked, and either whole or absent.

Files of a store are listed from its manifests alone, and hashed on the way; the manifest comes last.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore, holds_store, open_store
from ditlab.data.stores.manifest import (
    BUCKETS_NAME,
    MANIFEST_BYTES,
    MANIFEST_NAME,
    AnyManifest,
    BucketsManifest,
    StoreManifest,
    parse_manifest,
)
from ditlab.data.stores.store import Store
from ditlab.errors import Unreachable, UserError
from ditlab.home import Home
from ditlab.spec.uris import is_uri, refuse_storage
from ditlab.spec.values import format_bytes
from ditlab.storage.files import flush_to_disk, sync_folder, write_durably
from ditlab.storage.plain_files import MIB, open_for_append, open_regular_file, read_plain
from ditlab.storage.remote import RemoteFiles

READ_REMEDY = "check the address, the network and the credentials in the environment"
UPLOAD_AGAIN = "delete the files there, and upload the store again with `ditlab data upload`"
UNSIZED_BYTES = 256 * MIB
"""Most bytes of a file whose size no manifest has: a tokeniser, a list for people."""
PARALLEL_FILES = 8
"""Files transferred at a time: an object store answers one reader with some 50 to 100 MB/s."""
Notify = Callable[[str], None]
"""Function that shows a message to people."""
STORES = "stores"
"""Folder of copies below the node's cache."""
ANNOUNCED_BYTES = 2**30
"""Bytes from which a copy is announced before it begins."""
ReadFile = Callable[[str, str], bytes]
"""Function that returns a small file's bytes, by folder (`""`: the store's own) and name.

Raises FileNotFoundError where there is none.
"""


def write_to_stderr(message: str) -> None:
    """Write a message to standard error."""
    sys.stderr.write(f"{message}\n")


@dataclass(frozen=True)
class StoreFile:
    """File of a store that is no manifest."""

    folder: str
    """Folder of the bucket; empty: the store's own."""
    name: str
    size: int | None = None
    """Size in bytes; None where no manifest has it: for attachments and lists for people."""
    sha256: str = ""
    """SHA-256 (hex); empty where no manifest has it: for lists for people."""

    @property
    def path(self) -> str:
        """Path below the store's folder."""
        return f"{self.folder}/{self.name}".lstrip("/")


@dataclass(frozen=True)
class RootManifest:
    """Manifest in a store's own folder, and the bytes that it was read from."""

    name: str
    content: bytes
    manifest: AnyManifest


@dataclass(frozen=True)
class StoreContents:
    """Manifests and files of a store.

    They are placed in this order: files, the buckets' manifests, the root manifest. A store is whole once the last is
    there.
    """

    root: RootManifest
    parts: tuple[tuple[str, bytes, StoreManifest], ...]
    """Folder, manifest bytes and manifest of each bucket of a bucketed store."""
    files: tuple[StoreFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files whose size a manifest has."""
        return sum(file.size or 0 for file in self.files)

    @property
    def manifests(self) -> Iterator[tuple[str, str, bytes]]:
        """Folder, name and content of each manifest, in the order in which they are placed."""
        for folder, content, _ in self.parts:
            yield folder, MANIFEST_NAME, content
        yield "", self.root.name, self.root.content


def read_root(read: ReadFile, place: str) -> RootManifest | None:
    """Read the root manifest of a store; None where there is none. Raises UserError where it was altered."""
    kinds: dict[str, Any] = {MANIFEST_NAME: StoreManifest, BUCKETS_NAME: BucketsManifest}
    for name, kind in kinds.items():
        with suppress(FileNotFoundError):
            content = read("", name)
            manifest: AnyManifest = parse_manifest(content, kind, f"{place}: {name}", UPLOAD_AGAIN)
            return RootManifest(name, content, manifest)
    return None


def read_contents(read: ReadFile, root: RootManifest, place: str) -> StoreContents:
    """List the store with this root manifest. Raises UserError where a bucket's manifest is missing or altered."""
    if isinstance(root.manifest, StoreManifest):
        return StoreContents(root, (), tuple(StoreFile("", *file) for file in root.manifest.stored_files))
    parts, files = [], [StoreFile("", name) for name in root.manifest.files.values()]
    for bucket in root.manifest.buckets:
        name = f"{bucket.folder}/{MANIFEST_NAME}"
        try:
            content = read(bucket.folder, MANIFEST_NAME)
        except FileNotFoundError:
            raise UserError(f"{place}: {name} is missing; {UPLOAD_AGAIN}.") from None
        manifest = parse_manifest(content, StoreManifest, f"{place}: {name}", UPLOAD_AGAIN)
        if (manifest.fingerprint, manifest.rows) != (bucket.fingerprint, bucket.rows):
            raise UserError(f"{place}: {name} is not the store that {root.name} names; {UPLOAD_AGAIN}.")
        parts.append((bucket.folder, content, manifest))
        files.extend(StoreFile(bucket.folder, *file) for file in manifest.stored_files)
    return StoreContents(root, tuple(parts), tuple(files))


def open_root(knob: str, uri: str) -> tuple[RemoteFiles, RootManifest]:
    """Open the files below a URI, and read the root manifest of the store there.

    Raises UserError as `open_files` does, for a place without a store and for an altered manifest; Unreachable where
    the place does not answer.
    """
    files = open_files(knob, uri)
    with files.translating_errors("cannot be read", READ_REMEDY):
        root = read_root(files.read, f"{knob}={uri}")
    if root is None:
        raise UserError(f"{knob}={uri} holds no store; put one there with `ditlab data upload STORE {uri}`.")
    return files, root


def open_files(knob: str, uri: str) -> RemoteFiles:
    """Open the files below a URI.

    Raises UserError, naming the knob, for a text that is no URI, holds a secret, or has a scheme without a library.
    """
    try:
        refuse_storage(knob, uri)
    except ValueError as error:
        raise UserError(str(error)) from None
    if not is_uri(uri):
        raise UserError(f"{knob}={uri} is no URI; write scheme://bucket/prefix.")
    return RemoteFiles.open(knob, uri)


def describe_store(knob: str, uri: str) -> AnyStore:
    """Return the store at a URI without its rows, of which only the manifests are read. Raises as `open_root` does."""
    files, root = open_root(knob, uri)
    with files.translating_errors("cannot be read", READ_REMEDY):
        contents = read_contents(files.read, root, f"{knob}={uri}")
    if isinstance(root.manifest, StoreManifest):
        return Store(Path(uri), root.manifest)
    return BucketedStore(Path(uri), root.manifest, [Store(Path(uri), manifest) for _, _, manifest in contents.parts])


def open_remote_store(
    knob: str, uri: str, home: Home, verify: bool = True, notify: Notify = write_to_stderr
) -> AnyStore:
    """Open the store at a URI from this node's copy, which is made now where there is none.

    `notify` gets messages for people: that a copy is made or waited for, or used although the place does not answer. A
    damaged copy is repaired. Raises UserError, naming the knob, for a place that holds no store or an altered one,
    cannot be reached, or does not fit the disk.
    """
    copies = NodeCopies(home.node_cache / STORES, notify)
    folder = copies.fetch(knob, uri)
    try:
        return open_store(folder, verify)
    except UserError:
        notify(f"{knob}={uri}: the copy in {folder} was damaged; the files that differ are fetched again.")
        return open_store(copies.fetch(knob, uri, repair=True), verify)


class NodeCopies:
    """Copies below a folder, `NAME-FINGERPRINT` each, and `.places`, the copy of each URI."""

    def __init__(self, folder: Path, notify: Notify, is_copied: Callable[[StoreFile], bool] = lambda file: True):
        """Open the copies below a folder; `is_copied` chooses files beside the manifests."""
        self.folder, self._notify, self._is_copied = folder, notify, is_copied

    def place_of(self, manifest: AnyManifest) -> Path:
        """Return the folder of a store's copy, which may not exist."""
        return self.folder / f"{manifest.name[:40]}-{manifest.fingerprint[:12]}"

    def fetch(self, knob: str, uri: str, repair: bool = False) -> Path:
        """Return the copy of the store at a URI, made now if there is none; `repair` compares and mends its files."""
        place, record = f"{knob}={uri}", self.folder / ".places" / hashlib.sha256(uri.encode()).hexdigest()[:32]
        try:
            files, root = open_root(knob, uri)
        except Unreachable as error:
            recorded: Path | None = None
            with suppress(OSError):
                name = read_plain(record, MIB).decode(errors="replace")
                if re.fullmatch(r"[^/\0]+-[0-9a-f]{12}", name) and holds_store(self.folder / name):
                    recorded = self.folder / name
            if recorded is None or repair:
                raise
            self._notify(f"{error} Using the copy that this node has in {recorded}.")
            return recorded
        copy = self.place_of(root.manifest)

        def is_whole() -> bool:
            """Return True if the copy's manifest, which is placed last, equals the one behind the URI."""
            try:
                return read_plain(copy / root.name, MANIFEST_BYTES) == root.content
            except OSError:
                return False

        if repair or not is_whole():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self._locked(copy, place):
                    if repair or not is_whole():
                        self._copy(files, root, copy)
            except OSError as error:
                raise UserError(
                    f"{place} cannot be copied to {copy} ({error.strerror or error}); make room there, or point "
                    "DITLAB_CACHE at a larger disk of this node."
                ) from error
        with suppress(OSError):  # a full disk, or one that may only be read: the copy itself is there
            if not record.exists() or read_plain(record, MIB) != copy.name.encode():
                record.parent.mkdir(exist_ok=True)
                write_durably(record, copy.name.encode())
        return copy

    @contextmanager
    def _locked(self, copy: Path, place: str) -> Iterator[None]:
        """Hold a copy's lock among the processes of a node; the lock of a killed process ends with it."""
        descriptor = open_for_append(self.folder / f".{copy.name}.lock")
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._notify(f"{place}: another process copies it to {copy}; waiting for it to finish.")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _copy(self, files: RemoteFiles, root: RootManifest, copy: Path) -> None:
        """Fetch the files that a copy lacks, then place the manifests.

        A file takes its name once its size and SHA-256 are those of the manifest, so a copy that was killed is
        continued. Raises UserError for files that are missing there or differ, OSError where the disk refuses.
        """
        place, started = f"{files.knob}={files.location}", time.monotonic()
        with files.translating_errors("cannot be read", READ_REMEDY):
            contents = read_contents(files.read, root, place)
        contents = replace(contents, files=tuple(filter(self._is_copied, contents.files)))
        size, where = format_bytes(contents.size), f"{copy} on {socket.gethostname()}"
        if contents.size >= ANNOUNCED_BYTES:
            self._notify(f"{place}: copying {size} to {where} ...")
        for below in {"", *(below for below, _, _ in contents.parts)}:
            (copy / below).mkdir(parents=True, exist_ok=True)
        missing = [file for file in contents.files if not _is_there(copy / file.path, file)]
        needed, free = sum(file.size or 0 for file in missing), shutil.disk_usage(copy).free
        if needed > free:
            raise UserError(
                f"{place} needs {format_bytes(needed)} in {copy}, where {format_bytes(free)} are free; make room "
                "there, or point DITLAB_CACHE at a larger disk of this node."
            )
        stop = threading.Event()
        with ThreadPoolExecutor(PARALLEL_FILES) as pool:
            try:
                list(pool.map(lambda file: _fetch_file(files, file, copy / file.path, stop), missing))
            finally:
                stop.set()  # after an error or Ctrl-C, do not wait for unfinished files
        for below, name, content in contents.manifests:
            sync_folder(copy / below)
            write_durably(copy / below / name, content)
        self._notify(f"{place}: {size} copied to {where} in {time.monotonic() - started:.1f} s.")


def _is_there(path: Path, file: StoreFile) -> bool:
    """Return True if a file of an earlier copy has the manifest's size and SHA-256."""
    try:
        with open_regular_file(path) as content:
            if not file.sha256 or file.size not in (None, os.fstat(content.fileno()).st_size):
                return False
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def _fetch_file(files: RemoteFiles, file: StoreFile, target: Path, stop: threading.Event) -> None:
    place, most = f"{files.knob}={files.location}: {file.path}", UNSIZED_BYTES if file.size is None else file.size
    digest, size, partial = hashlib.sha256(), 0, target.with_name(f".{target.name}.partial")
    remedy = "check the network and the credentials in the environment"
    try:
        with partial.open("wb") as sink:
            chunks = files.chunks(file.folder, file.name)
            while size <= most:
                with files.translating_errors(f"does not give {file.path}", remedy):
                    try:
                        chunk = next(chunks, b"")
                    except FileNotFoundError:
                        raise UserError(
                            f"{place} is missing; upload the store again with `ditlab data upload`."
                        ) from None
                if stop.is_set():
                    return
                if not chunk:
                    break
                size += len(chunk)
                digest.update(chunk)
                sink.write(chunk)
            flush_to_disk(sink)
        problem = ""
        if size > most or file.size not in (None, size):
            says = "at most" if file.size is None else "the manifest says"
            problem = f"it has {'more than ' if size > most else ''}{min(size, most):,} bytes, and {says} {most:,}"
        elif file.sha256 not in ("", digest.hexdigest()):
            problem = f"its SHA-256 is {digest.hexdigest()[:16]}..., and the manifest says {file.sha256[:16]}..."
        if problem:
            raise UserError(f"{place} was altered: {problem}; {UPLOAD_AGAIN}.")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
