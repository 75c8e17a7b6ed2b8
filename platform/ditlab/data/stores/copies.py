"""Copies of remote stores on a node: each made once, checked, and either whole or absent.

Files of a store are listed from its manifests alone, and hashed on the way; the manifest comes
last.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore, open_store
from ditlab.data.stores.manifest import (
    BUCKETS_NAME,
    MANIFEST_NAME,
    AnyManifest,
    BucketsManifest,
    StoreManifest,
    parse_manifest,
)
from ditlab.data.stores.store import Store
from ditlab.errors import Unreachable, UserError, disk_remedy, first_line
from ditlab.home import Home
from ditlab.spec.uris import is_uri, refuse_storage
from ditlab.spec.values import format_bytes
from ditlab.storage.files import flush_to_disk, sync_folder, take_lock, write_durably
from ditlab.storage.remote import RemoteFiles

READ_REMEDY = "check the address, the network and the credentials in the environment"
UPLOAD_AGAIN = "delete the files there, and upload the store again with `ditlab data upload`"
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
    """Size in bytes; None where no manifest has it: for attachments."""
    sha256: str = ""
    """SHA-256 (hex); empty for manifests."""

    @property
    def path(self) -> str:
        """Path below the store's folder."""
        return f"{self.folder}/{self.name}".lstrip("/")


@dataclass(frozen=True)
class PlacedManifest:
    """Manifest of a store or a bucket, and the bytes that it was read from."""

    folder: str
    """Folder of the bucket; empty: the store's own."""
    name: str
    content: bytes
    manifest: AnyManifest


@dataclass(frozen=True)
class StoreContents:
    """Files and manifests of a store, which are placed in this order: it is whole once the last of
    them is there.
    """

    files: tuple[StoreFile, ...]
    manifests: tuple[PlacedManifest, ...]
    """Manifests of the buckets of a bucketed store, and the store's own at the end."""

    @property
    def size(self) -> int:
        """Bytes of all files whose size a manifest has."""
        return sum(file.size or 0 for file in self.files)


def read_root(read: ReadFile, place: str) -> PlacedManifest | None:
    """Read a store's own manifest; None where there is none. Raises UserError where it was
    altered.
    """
    kinds: dict[str, Any] = {MANIFEST_NAME: StoreManifest, BUCKETS_NAME: BucketsManifest}
    for name, kind in kinds.items():
        with suppress(FileNotFoundError):
            content = read("", name)
            return PlacedManifest(
                "", name, content, parse_manifest(content, kind, f"{place}: {name}", UPLOAD_AGAIN)
            )
    return None


def read_contents(read: ReadFile, root: PlacedManifest, place: str) -> StoreContents:
    """List the store with this manifest. Raises UserError where a bucket's manifest is missing or
    altered.
    """
    if isinstance(root.manifest, StoreManifest):
        return StoreContents(
            tuple(StoreFile("", *file) for file in root.manifest.stored_files), (root,)
        )
    files: list[StoreFile] = []
    parts = []
    for bucket in root.manifest.buckets:
        name = f"{bucket.folder}/{MANIFEST_NAME}"
        try:
            content = read(bucket.folder, MANIFEST_NAME)
        except FileNotFoundError:
            raise UserError(f"{place}: {name} is missing; {UPLOAD_AGAIN}.") from None
        manifest = parse_manifest(content, StoreManifest, f"{place}: {name}", UPLOAD_AGAIN)
        if (manifest.fingerprint, manifest.rows) != (bucket.fingerprint, bucket.rows):
            raise UserError(
                f"{place}: {name} is not the store that {root.name} names; {UPLOAD_AGAIN}."
            )
        parts.append(PlacedManifest(bucket.folder, MANIFEST_NAME, content, manifest))
        files.extend(StoreFile(bucket.folder, *file) for file in manifest.stored_files)
    return StoreContents(tuple(files), (*parts, root))


def open_root(knob: str, uri: str) -> tuple[RemoteFiles, PlacedManifest]:
    """Open the files below a URI, and read the store's own manifest there.

    Raises UserError as `open_files` does, for a place without a store and for an altered manifest;
    Unreachable where the place does not answer.
    """
    files = open_files(knob, uri)
    with files.translating_errors("cannot be read", READ_REMEDY):
        root = read_root(files.read, f"{knob}={uri}")
    if root is None:
        raise UserError(
            f"{knob}={uri} holds no store; put one there with `ditlab data upload STORE {uri}`."
        )
    return files, root


def open_files(knob: str, uri: str) -> RemoteFiles:
    """Open the files below a URI. Raises UserError, naming the knob, for no URI, a secret in it, or
    its scheme.
    """
    try:
        refuse_storage(knob, uri)
    except ValueError as error:
        raise UserError(str(error)) from None
    if not is_uri(uri):
        raise UserError(f"{knob}={uri} is no URI; write scheme://bucket/prefix.")
    return RemoteFiles.open(knob, uri)


def describe_store(knob: str, uri: str) -> AnyStore:
    """Return the store at a URI without its rows, of which only the manifests are read. Raises as
    `open_root` does.
    """
    files, root = open_root(knob, uri)
    with files.translating_errors("cannot be read", READ_REMEDY):
        contents = read_contents(files.read, root, f"{knob}={uri}")
    if isinstance(root.manifest, BucketsManifest):
        parts = [
            part.manifest for part in contents.manifests if isinstance(part.manifest, StoreManifest)
        ]
        return BucketedStore(
            Path(uri), root.manifest, [Store(Path(uri), manifest) for manifest in parts]
        )
    return Store(Path(uri), root.manifest)


def open_remote_store(
    knob: str, uri: str, home: Home, verify: bool = True, notify: Notify = write_to_stderr
) -> AnyStore:
    """Open the store at a URI from this node's copy, which is made now where there is none.

    `notify` gets messages for people: that a copy is made or waited for. A damaged copy is
    repaired. Raises UserError, naming the knob, for a place that holds no store or an altered one,
    cannot be reached, or does not fit the disk.
    """
    copies = home.node_cache / STORES
    folder = fetch_copy(copies, knob, uri, notify)
    try:
        return open_store(folder, verify)
    except UserError:
        notify(
            f"{knob}={uri}: the copy in {folder} was damaged; the files that differ are "
            "fetched again."
        )
        return open_store(fetch_copy(copies, knob, uri, notify, repair=True), verify)


def copy_of(folder: Path, manifest: AnyManifest) -> Path:
    """Return the folder of a store's copy among those in a folder; it may not exist."""
    return folder / f"{manifest.name[:40]}-{manifest.fingerprint[:12]}"


def fetch_copy(
    folder: Path,
    knob: str,
    uri: str,
    notify: Notify,
    is_copied: Callable[[StoreFile], bool] = lambda file: True,
    repair: bool = False,
) -> Path:
    """Return the copy of the store at a URI among those in a folder, made now if there is none.

    `is_copied` chooses files beside the manifests; `repair` compares them, and fetches those again
    that differ.
    """
    place = f"{knob}={uri}"
    files, root = open_root(knob, uri)
    copy = copy_of(folder, root.manifest)

    def is_whole() -> bool:
        """Return True if the copy's manifest, which is placed last, equals the one behind the
        URI.
        """
        try:
            return (copy / root.name).read_bytes() == root.content
        except OSError:
            return False

    if repair or not is_whole():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # the lock of a killed process ends with it
            with (folder / f".{copy.name}.lock").open("ab") as lock:
                if not take_lock(lock):
                    notify(
                        f"{place}: another process copies it to {copy}; waiting for it to finish."
                    )
                    take_lock(lock, wait=True)
                if repair or not is_whole():
                    _copy(files, root, copy, notify, is_copied)
        except OSError as error:
            raise UserError(
                f"{place} cannot be copied to {copy} ({error.strerror or error}); "
                f"{disk_remedy(error, 'point DITLAB_CACHE at a larger disk of this node')}."
            ) from error
    return copy


def _copy(
    files: RemoteFiles,
    root: PlacedManifest,
    copy: Path,
    notify: Notify,
    is_copied: Callable[[StoreFile], bool],
) -> None:
    """Fetch the files that a copy lacks, then place the manifests.

    A file takes its name once its size and SHA-256 are those of the manifest, so a copy that was
    killed is continued. Raises UserError for files that are missing there or differ, OSError where
    the disk refuses.
    """
    place = f"{files.knob}={files.location}"
    started = time.monotonic()
    with files.translating_errors("cannot be read", READ_REMEDY):
        contents = read_contents(files.read, root, place)
    contents = replace(contents, files=tuple(filter(is_copied, contents.files)))
    size = format_bytes(contents.size)
    where = f"{copy} on {socket.gethostname()}"
    if contents.size >= ANNOUNCED_BYTES:
        notify(f"{place}: copying {size} to {where} ...")
    for part in contents.manifests:
        (copy / part.folder).mkdir(parents=True, exist_ok=True)
    missing = [file for file in contents.files if not _is_there(copy / file.path, file)]
    with ThreadPoolExecutor(PARALLEL_FILES) as pool:
        list(pool.map(lambda file: _fetch_file(files, file, copy / file.path), missing))
    for part in contents.manifests:
        sync_folder(copy / part.folder)
        write_durably(copy / part.folder / part.name, part.content)
    notify(f"{place}: {size} copied to {where} in {time.monotonic() - started:.1f} s.")


def _is_there(path: Path, file: StoreFile) -> bool:
    """Return True if a file of an earlier copy has the manifest's SHA-256."""
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def _fetch_file(files: RemoteFiles, file: StoreFile, target: Path) -> None:
    """Fetch a file. Raises UserError for one that is missing or was altered, OSError where the disk
    refuses.
    """
    place = f"{files.knob}={files.location}: {file.path}"
    digest = hashlib.sha256()
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as sink:
            for chunk in _chunks(files, file):
                digest.update(chunk)
                sink.write(chunk)
            flush_to_disk(sink)
        if digest.hexdigest() != file.sha256:
            raise UserError(
                f"{place} was altered: its SHA-256 is {digest.hexdigest()[:16]}..., and the "
                f"manifest says {file.sha256[:16]}...; {UPLOAD_AGAIN}."
            )
        partial.replace(target)
    except FileNotFoundError:
        raise UserError(
            f"{place} is missing; upload the store again with `ditlab data upload`."
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _chunks(files: RemoteFiles, file: StoreFile) -> Iterator[bytes]:
    """Read a file's content. Raises FileNotFoundError where there is none, Unreachable where nobody
    answers.
    """
    chunks = files.chunks(file.folder, file.name)
    while True:
        try:
            chunk = next(chunks, b"")
        except FileNotFoundError:
            raise
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            raise Unreachable(
                f"{files.knob}={files.location} does not give {file.path} "
                f"({first_line(error)}); {READ_REMEDY}."
            ) from error
        if not chunk:
            return
        yield chunk
