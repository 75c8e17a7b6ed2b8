"""Upload of a store to a URI: files first, the manifest last."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ditlab.data.remote.copies import PARALLEL_FILES, READ_REMEDY, open_files, read_manifest
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.files import StoreContents, StoreFile, read_contents, read_root
from ditlab.data.stores.manifest import MANIFEST_BYTES, MANIFEST_NAME
from ditlab.errors import UserError
from ditlab.storage.plain_files import open_regular_file, read_plain
from ditlab.storage.remote import RemoteFiles

KNOB = "URI"
CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class UploadResult:
    """Result of an upload."""

    outcome: Literal["uploaded", "unchanged"]
    """`unchanged`: the same store was there, every file of it."""
    sent: int
    """Number of files that were sent."""
    size: int
    """Bytes of all shards."""


def upload_store(store: AnyStore, uri: str) -> UploadResult:
    """Upload an open store, which should have been verified, to a URI; an upload that was cut short is continued.

    Raises UserError where another store lies there, and where nothing can be written there.
    """
    remote = open_files(KNOB, uri)
    contents = _contents_of(store)
    with remote.translating_errors("cannot be read", READ_REMEDY):
        there = read_root(read_manifest(remote), f"{KNOB}={uri}")
        if there and there.manifest.fingerprint != store.fingerprint:
            raise UserError(
                f"{KNOB}={uri} holds another store ({there.manifest.name}, fingerprint "
                f"{there.manifest.fingerprint[:12]}); name an empty place, or delete that store first."
            )
        missing = _missing(remote, contents, is_known=there is not None)
    if there and not missing:
        return UploadResult("unchanged", 0, contents.size)
    remedy = "check the bucket, its permissions and the credentials in the environment"
    with remote.translating_errors("cannot be written", remedy):
        with ThreadPoolExecutor(PARALLEL_FILES) as pool:
            list(pool.map(lambda file: _send(remote, store.path, file), missing))
        for folder, name, content in contents.manifests:
            remote.replace(folder, name, content)
    return UploadResult("uploaded", len(missing), contents.size)


def _contents_of(store: AnyStore) -> StoreContents:
    def read(folder: str, name: str) -> bytes:
        return read_plain(store.path / folder / name, MANIFEST_BYTES)

    root = read_root(read, str(store.path))
    assert root is not None, "an open store has a manifest"
    return read_contents(read, root, str(store.path))


def _missing(remote: RemoteFiles, contents: StoreContents, is_known: bool) -> list[StoreFile]:
    """List the files to send.

    Without the store's manifest there (`is_known`), a file counts as sent only where its name holds its content's hash,
    as the names of shards do.
    """
    sizes = {folder: remote.sizes(folder) for folder in {"", *(folder for folder, _, _ in contents.parts)}}

    def is_there(file: StoreFile) -> bool:
        size = sizes[file.folder].get(file.name)
        return size is not None and file.size in (None, size) and (is_known or file.sha256[:12] in file.name)

    parts = [StoreFile(folder, MANIFEST_NAME, len(content)) for folder, content, _ in contents.parts]
    return [file for file in (*contents.files, *parts) if not is_there(file)]


def _send(remote: RemoteFiles, path: Path, file: StoreFile) -> None:
    def chunks() -> Iterator[bytes]:
        with open_regular_file(path / file.folder / file.name) as content:
            while chunk := content.read(CHUNK_BYTES):
                yield chunk

    remote.write(file.folder, file.name, chunks())
