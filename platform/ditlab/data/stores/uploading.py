"""Upload of a store to a URI: files first, the manifest last."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.copies import (
    PARALLEL_FILES,
    READ_REMEDY,
    StoreFile,
    open_files,
    read_contents,
    read_root,
)
from ditlab.errors import UserError
from ditlab.storage.local import LocalFiles

KNOB = "URI"


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
    """Upload an open store, which should have been verified, to a URI; an upload that was cut short
    is continued.

    Raises UserError where another store lies there, and where nothing can be written there.
    """
    remote = open_files(KNOB, uri)
    local = LocalFiles(store.path, KNOB)
    root = read_root(local.read, str(store.path))
    assert root is not None, "an open store has a manifest"
    contents = read_contents(local.read, root, str(store.path))
    with remote.translating_errors("cannot be read", READ_REMEDY):
        there = read_root(remote.read, f"{KNOB}={uri}")
        if there and there.manifest.fingerprint != store.fingerprint:
            raise UserError(
                f"{KNOB}={uri} holds another store ({there.manifest.name}, fingerprint "
                f"{there.manifest.fingerprint[:12]}); name an empty place, or delete that "
                "store first."
            )
        sizes = {part.folder: remote.sizes(part.folder) for part in contents.manifests}

    def is_there(file: StoreFile) -> bool:
        # Without the store's manifest there, only a name that holds its content's hash, as a
        # shard's does, vouches.
        size = sizes[file.folder].get(file.name)
        return (
            size is not None
            and file.size in (None, size)
            and bool(there or file.sha256[:12] in file.name)
        )

    parts = [
        StoreFile(part.folder, part.name, len(part.content)) for part in contents.manifests[:-1]
    ]
    missing = [file for file in (*contents.files, *parts) if not is_there(file)]
    if there and not missing:
        return UploadResult("unchanged", 0, contents.size)
    remedy = "check the bucket, its permissions and the credentials in the environment"
    with remote.translating_errors("cannot be written", remedy):
        with ThreadPoolExecutor(PARALLEL_FILES) as pool:
            chunks = [local.chunks(file.folder, file.name) for file in missing]
            list(
                pool.map(
                    lambda file, content: remote.write(file.folder, file.name, content),
                    missing,
                    chunks,
                )
            )
        for part in contents.manifests:
            remote.replace(part.folder, part.name, part.content)
    return UploadResult("uploaded", len(missing), contents.size)
