"""Files of a store in the order of their transfer, listed from its manifests alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ditlab.data.stores.manifest import (
    BUCKETS_NAME,
    MANIFEST_NAME,
    AnyManifest,
    BucketsManifest,
    StoreManifest,
    parse_manifest,
)
from ditlab.errors import UserError

ReadFile = Callable[[str, str], bytes]
"""Function that returns a small file's bytes, by folder (`""`: the store's own) and name.

Raises FileNotFoundError where there is none.
"""


UPLOAD_AGAIN = "delete the files there, and upload the store again with `ditlab data upload`"


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
    for name in (MANIFEST_NAME, BUCKETS_NAME):
        try:
            content = read("", name)
        except FileNotFoundError:
            continue
        where = f"{place}: {name}"
        if name == MANIFEST_NAME:
            return RootManifest(name, content, parse_manifest(content, StoreManifest, where, UPLOAD_AGAIN))
        return RootManifest(name, content, parse_manifest(content, BucketsManifest, where, UPLOAD_AGAIN))
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
