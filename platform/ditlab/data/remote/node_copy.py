"""A node's own copies of stores that lie behind a URI: each made once, checked, whole or not there."""

import fcntl
import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ditlab.data.remote.fetching import Fetch
from ditlab.data.remote.manifests import READ_REMEDY, open_root
from ditlab.data.stores.bucketed_store import AnyStore, holds_store, open_store
from ditlab.data.stores.files import RootManifest, read_contents
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.storage.failures import Unreachable
from ditlab.storage.files import write_durably
from ditlab.storage.remote import RemoteFiles

Notify = Callable[[str], None]
LARGE = 2**30
"""Bytes from which a copy is announced before it begins."""


def write_to_stderr(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def open_remote_store(
    knob: str, uri: str, home: Home, verify: bool = True, notify: Notify = write_to_stderr
) -> AnyStore:
    """The store at a URI, opened from this node's copy, which is made now where there is none.

    `say` hears what a person should know: that a copy is made or waited for, that one is used although the place does
    not answer. A copy that was damaged since is mended. Raises UserError, naming the knob, for a place that holds no
    store or an altered one, cannot be reached, or does not fit the disk.
    """
    copies = NodeCopies(home.node_cache / "stores", notify)
    folder = copies.fetch(knob, uri)
    try:
        return open_store(folder, verify)
    except UserError:
        notify(f"{knob}={uri}: the copy in {folder} was damaged; what differs is fetched again.")
        return open_store(copies.fetch(knob, uri, mend=True), verify)


class NodeCopies:
    """The copies below a folder, `NAME-FINGERPRINT` each, and `.places`: which URI each was made from."""

    def __init__(self, folder: Path, notify: Notify):
        self.folder, self._notify = folder, notify

    def fetch(self, knob: str, uri: str, mend: bool = False) -> Path:
        """The copy of the store at a URI. With `mend`, the files of one that is there are compared, too."""
        place = f"{knob}={uri}"
        try:
            files, root = open_root(knob, uri)
        except Unreachable as error:
            known = self._known(uri)
            if known is None or mend:
                raise
            self._notify(f"{error} Going on with the copy that this node has in {known}.")
            return known
        manifest = root.manifest
        copy = self.folder / f"{manifest.name[:40]}-{manifest.fingerprint[:12]}"
        if mend or not _is_whole(copy, root):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self._alone(copy, place):
                    if mend or not _is_whole(copy, root):
                        self._copy(files, root, copy, place)
            except OSError as error:
                raise UserError(
                    f"{place} cannot be copied to {copy} ({error.strerror or error}); make room there, or point "
                    "DITLAB_CACHE at a larger disk of this node."
                ) from error
        self._remember(uri, copy)
        return copy

    def _copy(self, files: RemoteFiles, root: RootManifest, copy: Path, place: str) -> None:
        with files.named("cannot be read", READ_REMEDY):
            contents = read_contents(files.read, root, place)
        started, size, where = time.monotonic(), _size(contents.size), f"{copy} on {socket.gethostname()}"
        if contents.size >= LARGE:
            self._notify(f"{place}: copying {size} to {where} ...")
        Fetch(files, copy, place).run(contents)
        self._notify(f"{place}: {size} copied to {where} in {time.monotonic() - started:.1f} s.")

    @contextmanager
    def _alone(self, copy: Path, place: str) -> Iterator[None]:
        """Exclusive among the processes of a node; the lock of a killed one ends with it."""
        descriptor = os.open(self.folder / f".{copy.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._notify(f"{place}: another process copies it to {copy}; waiting for that.")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _remember(self, uri: str, copy: Path) -> None:
        """For times when the place does not answer."""
        note = self._note(uri)
        try:
            if not note.exists() or note.read_bytes() != copy.name.encode():
                note.parent.mkdir(exist_ok=True)
                write_durably(note, copy.name.encode())
        except OSError:
            return  # a full disk, or one that may only be read: the copy itself is there

    def _known(self, uri: str) -> Path | None:
        try:
            name = self._note(uri).read_bytes().decode(errors="replace")
        except OSError:
            return None
        copy = self.folder / name
        return copy if re.fullmatch(r"[^/\0]+-[0-9a-f]{12}", name) and holds_store(copy) else None

    def _note(self, uri: str) -> Path:
        return self.folder / ".places" / hashlib.sha256(uri.encode()).hexdigest()[:32]


def _is_whole(copy: Path, root: RootManifest) -> bool:
    """Whether the copy's manifest, which is placed last, is the one that lies behind the URI."""
    try:
        return (copy / root.name).read_bytes() == root.content
    except OSError:
        return False


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
