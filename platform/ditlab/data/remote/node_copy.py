"""Copies of remote stores on a node: each made once, checked, and either whole or absent."""

import fcntl
import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ditlab.data.remote.fetching import Fetch
from ditlab.data.remote.manifests import READ_REMEDY, open_root, read_manifest
from ditlab.data.stores.bucket_manifest import BucketsManifest
from ditlab.data.stores.bucketed_store import AnyStore, holds_store, open_store
from ditlab.data.stores.files import RootManifest, StoreFile, read_contents
from ditlab.data.stores.manifest import StoreManifest
from ditlab.data.stores.manifest_parsing import MANIFEST_BYTES
from ditlab.errors import Unreachable, UserError
from ditlab.home import Home
from ditlab.storage.files import write_durably
from ditlab.storage.plain_files import MIB, UnusableFile, open_for_append, read_plain
from ditlab.storage.remote import RemoteFiles

Notify = Callable[[str], None]
"""Function that shows a message to people."""
STORES = "stores"
"""Folder of copies below the node's cache."""
ANNOUNCED_BYTES = 2**30
"""Bytes from which a copy is announced before it begins."""


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
        Fetch(files, copy, place).run(contents)
        self._notify(f"{place}: {size} copied to {where} in {time.monotonic() - started:.1f} s.")

    @contextmanager
    def _locked(self, copy: Path, place: str) -> Iterator[None]:
        """Hold a copy's lock among the processes of a node; the lock of a killed process ends with it."""
        lock = self.folder / f".{copy.name}.lock"
        try:
            descriptor = open_for_append(lock)
        except UnusableFile as error:
            raise UserError(f"{lock} is no lock ({error.strerror}); delete it.") from None
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


def format_bytes(num_bytes: int) -> str:
    """Return a number of bytes as text: `1.50 GiB`."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
