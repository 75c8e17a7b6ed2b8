"""Every file of a store, by its manifests alone: what to fetch, what to send, in which order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ditlab.data.stores.bucket_manifest import BUCKETS_NAME, BucketsManifest
from ditlab.data.stores.manifest import MANIFEST_NAME, Manifest
from ditlab.data.stores.manifest_parsing import parse_buckets, parse_manifest
from ditlab.errors import UserError

Read = Callable[[str, str], bytes]
"""A small file's bytes, by folder (`""`: the store's own) and name. Raises FileNotFoundError where there is none."""


AGAIN = "delete what lies there, and upload the store again with `ditlab data upload`"


@dataclass(frozen=True)
class StoreFile:
    """A file of a store that is no manifest."""

    folder: str
    """That of a bucket; empty: the store's own."""
    name: str
    size: int | None = None
    """Bytes; None where no manifest says it: of attachments and lists for people."""
    sha256: str = ""
    """Empty where no manifest says it: of lists for people."""


@dataclass(frozen=True)
class Root:
    """A store's own manifest, and the bytes that it was read from."""

    name: str
    content: bytes
    manifest: Manifest | BucketsManifest


@dataclass(frozen=True)
class Contents:
    """What a store is made of. It is whole once its root is there: files first, then parts, then the root."""

    root: Root
    parts: tuple[tuple[str, bytes, Manifest], ...]
    """Of a bucketed store: each bucket's folder and manifest."""
    files: tuple[StoreFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files whose size a manifest says."""
        return sum(file.size or 0 for file in self.files)

    @property
    def manifests(self) -> Iterator[tuple[str, str, bytes]]:
        """Folder, name and content of each manifest, in the order that they are placed in."""
        for folder, content, _ in self.parts:
            yield folder, MANIFEST_NAME, content
        yield "", self.root.name, self.root.content


def read_root(read: Read, place: str) -> Root | None:
    """The manifest of the store at a place; None where there is none. Raises UserError where it was altered."""
    for name in (MANIFEST_NAME, BUCKETS_NAME):
        try:
            content = read("", name)
        except FileNotFoundError:
            continue
        parse = parse_manifest if name == MANIFEST_NAME else parse_buckets
        return Root(name, content, parse(content, f"{place}: {name}", AGAIN))
    return None


def read_contents(read: Read, root: Root, place: str) -> Contents:
    """All that belongs to the store with this root. Raises UserError for a bucket's manifest missing or altered."""
    if isinstance(root.manifest, Manifest):
        return Contents(root, (), tuple(_files("", root.manifest)))
    parts, files = [], [StoreFile("", name) for name in root.manifest.files.values()]
    for bucket in root.manifest.buckets:
        name = f"{bucket.folder}/{MANIFEST_NAME}"
        try:
            content = read(bucket.folder, MANIFEST_NAME)
        except FileNotFoundError:
            raise UserError(f"{place}: {name} is missing; {AGAIN}.") from None
        manifest = parse_manifest(content, f"{place}: {name}", AGAIN)
        if (manifest.fingerprint, manifest.rows) != (bucket.fingerprint, bucket.rows):
            raise UserError(f"{place}: {name} is not the store that {root.name} means; {AGAIN}.")
        parts.append((bucket.folder, content, manifest))
        files.extend(_files(bucket.folder, manifest))
    return Contents(root, tuple(parts), tuple(files))


def _files(folder: str, manifest: Manifest) -> Iterator[StoreFile]:
    for shard in manifest.shards:
        yield StoreFile(folder, shard.file, shard.bytes, shard.sha256)
    for name, sha256 in manifest.attachments.items():
        yield StoreFile(folder, name, None, sha256)
