"""Copies of remote stores on a node: each made once, checked, and either whole or absent.

Files are hashed on the way, the manifest comes last.
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
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore, holds_store, open_store
from ditlab.data.stores.files import (
    UPLOAD_AGAIN,
    ReadFile,
    RootManifest,
    StoreContents,
    StoreFile,
    read_contents,
    read_root,
)
from ditlab.data.stores.manifest import MANIFEST_BYTES, BucketsManifest, StoreManifest
from ditlab.data.stores.store import Store
from ditlab.errors import Unreachable, UserError
from ditlab.home import Home
from ditlab.spec.uris import is_uri, refuse_storage
from ditlab.spec.values import format_bytes
from ditlab.storage.files import flush_to_disk, sync_folder, write_durably
from ditlab.storage.plain_files import MIB, open_for_append, open_regular_file, read_plain
from ditlab.storage.remote import RemoteFiles

READ_REMEDY = "check the address, the network and the credentials in the environment"
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


def read_manifest(files: RemoteFiles) -> ReadFile:
    """Return the function that reads a manifest below a URI, of which no more than MANIFEST_BYTES are fetched."""

    def read(folder: str, name: str) -> bytes:
        content = bytearray()
        for chunk in files.chunks(folder, name):
            content += chunk
            if len(content) > MANIFEST_BYTES:
                raise UserError(
                    f"{files.knob}={files.location}: {name} has more than {MANIFEST_BYTES:,} bytes, which no manifest "
                    f"has; {UPLOAD_AGAIN}."
                )
        return bytes(content)

    return read


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


def open_root(knob: str, uri: str) -> tuple[RemoteFiles, RootManifest]:
    """Open the files below a URI, and read the root manifest of the store there.

    Raises UserError as `open_files` does, for a place without a store and for an altered manifest; Unreachable where
    the place does not answer.
    """
    files = open_files(knob, uri)
    with files.translating_errors("cannot be read", READ_REMEDY):
        root = read_root(read_manifest(files), f"{knob}={uri}")
    if root is None:
        raise UserError(f"{knob}={uri} holds no store; put one there with `ditlab data upload STORE {uri}`.")
    return files, root


def describe_store(knob: str, uri: str) -> AnyStore:
    """Return the store at a URI without its rows, of which only the manifests are read. Raises as `open_root` does."""
    files, root = open_root(knob, uri)
    with files.translating_errors("cannot be read", READ_REMEDY):
        contents = read_contents(read_manifest(files), root, f"{knob}={uri}")
    if isinstance(root.manifest, StoreManifest):
        return Store(Path(uri), root.manifest)
    return BucketedStore(Path(uri), root.manifest, [Store(Path(uri), manifest) for _, _, manifest in contents.parts])


def fetch_files(files: RemoteFiles, contents: StoreContents, folder: Path) -> None:
    """Fetch the files of a store that a folder lacks, then place the manifests; only one may do so at a time.

    A file takes its name once its size and SHA-256 are those of the manifest, so a copy that was killed is continued.
    Raises UserError for files that are missing there or differ from the manifests, OSError where the disk refuses.
    """
    for below in {"", *(below for below, _, _ in contents.parts)}:
        (folder / below).mkdir(parents=True, exist_ok=True)
    missing = [file for file in contents.files if not _is_there(folder / file.path, file)]
    needed, free = sum(file.size or 0 for file in missing), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{files.knob}={files.location} needs {format_bytes(needed)} in {folder}, where {format_bytes(free)} are "
            "free; make room there, or point DITLAB_CACHE at a larger disk of this node."
        )
    stop = threading.Event()
    with ThreadPoolExecutor(PARALLEL_FILES) as pool:
        try:
            list(pool.map(lambda file: _fetch_file(files, file, folder / file.path, stop), missing))
        finally:
            stop.set()  # after an error or Ctrl-C, do not wait for unfinished files
    for below, name, content in contents.manifests:
        sync_folder(folder / below)
        write_durably(folder / below / name, content)


def _fetch_file(files: RemoteFiles, file: StoreFile, target: Path, stop: threading.Event) -> None:
    most = UNSIZED_BYTES if file.size is None else file.size
    digest, size, partial = hashlib.sha256(), 0, target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as sink:
            for chunk in _chunks(files, file):
                if stop.is_set():
                    return
                size += len(chunk)
                if size > most:
                    break
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
            raise UserError(f"{files.knob}={files.location}: {file.path} was altered: {problem}; {UPLOAD_AGAIN}.")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _chunks(files: RemoteFiles, file: StoreFile) -> Iterator[bytes]:
    remedy = "check the network and the credentials in the environment"
    with files.translating_errors(f"does not give {file.path}", remedy):
        try:
            yield from files.chunks(file.folder, file.name)
        except FileNotFoundError:
            place = f"{files.knob}={files.location}"
            raise UserError(
                f"{place}: {file.path} is missing; upload the store again with `ditlab data upload`."
            ) from None


def _is_there(path: Path, file: StoreFile) -> bool:
    """Return True if a file of an earlier copy has the manifest's size and SHA-256."""
    try:
        with open_regular_file(path) as content:
            if not file.sha256 or file.size not in (None, os.fstat(content.fileno()).st_size):
                return False
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def write_to_stderr(message: str) -> None:
    """Write a message to standard error."""
    sys.stderr.write(f"{message}\n")


def open_remote_store(
    knob: str, uri: str, home: Home, verify: bool = True, notify: Notify = write_to_stderr
) -> AnyStore:
    """Open the store at a URI from this node's copy, which is made now where there is none.

    `notify` gets messages for people: that a copy is made or waited for, or used although the place does not answer. A
    damaged copy is repaired. Raises UserError, naming the knob, for a place that holds no
    store or an altered one, cannot be reached, or does not fit the disk.
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

    def fetch(self, knob: str, uri: str, repair: bool = False) -> Path:
        """Return the copy of the store at a URI, made now if there is none; `repair` compares and mends its files."""
        place = f"{knob}={uri}"
        try:
            files, root = open_root(knob, uri)
        except Unreachable as error:
            recorded = self._recorded(uri)
            if recorded is None or repair:
                raise
            self._notify(f"{error} Using the copy that this node has in {recorded}.")
            return recorded
        copy = self.place_of(root.manifest)
        if repair or not _is_whole(copy, root):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self._locked(copy, place):
                    if repair or not _is_whole(copy, root):
                        self._copy(files, root, copy, place)
            except OSError as error:
                raise UserError(
                    f"{place} cannot be copied to {copy} ({error.strerror or error}); make room there, or point "
                    "DITLAB_CACHE at a larger disk of this node."
                ) from error
        self._record(uri, copy)
        return copy

    def place_of(self, manifest: StoreManifest | BucketsManifest) -> Path:
        """Return the folder of a store's copy, which may not exist."""
        return self.folder / f"{manifest.name[:40]}-{manifest.fingerprint[:12]}"

    def _copy(self, files: RemoteFiles, root: RootManifest, copy: Path, place: str) -> None:
        with files.translating_errors("cannot be read", READ_REMEDY):
            contents = read_contents(read_manifest(files), root, place)
        contents = replace(contents, files=tuple(filter(self._is_copied, contents.files)))
        started, size, where = time.monotonic(), format_bytes(contents.size), f"{copy} on {socket.gethostname()}"
        if contents.size >= ANNOUNCED_BYTES:
            self._notify(f"{place}: copying {size} to {where} ...")
        fetch_files(files, contents, copy)
        self._notify(f"{place}: {size} copied to {where} in {time.monotonic() - started:.1f} s.")

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

    def _record(self, uri: str, copy: Path) -> None:
        """Record the copy of a URI, to be used when the place does not answer."""
        file = self._record_file(uri)
        try:
            if self._recorded(uri) != copy:
                file.parent.mkdir(exist_ok=True)
                write_durably(file, copy.name.encode())
        except OSError:
            return  # a full disk, or one that may only be read: the copy itself is there

    def _recorded(self, uri: str) -> Path | None:
        try:
            name = read_plain(self._record_file(uri), MIB).decode(errors="replace")
        except OSError:
            return None
        copy = self.folder / name
        return copy if re.fullmatch(r"[^/\0]+-[0-9a-f]{12}", name) and holds_store(copy) else None

    def _record_file(self, uri: str) -> Path:
        return self.folder / ".places" / hashlib.sha256(uri.encode()).hexdigest()[:32]


def _is_whole(copy: Path, root: RootManifest) -> bool:
    """Return True if the copy's manifest, which is placed last, equals the one behind the URI."""
    try:
        return read_plain(copy / root.name, MANIFEST_BYTES) == root.content
    except OSError:
        return False
