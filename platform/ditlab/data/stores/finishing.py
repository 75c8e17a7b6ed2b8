"""End of a store's making: index file and manifest over shards that are on the disk."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ditlab.data.stores.blocks.index import DIGEST_BYTES, column_hash, entry_bytes
from ditlab.data.stores.manifest import (
    MANIFEST_NAME,
    Column,
    IndexFile,
    Source,
    StoredColumn,
    StoreManifest,
    TextFacts,
    content_fingerprint,
)
from ditlab.data.stores.manifest_parsing import format_manifest
from ditlab.data.stores.plain_names import plain_name
from ditlab.data.stores.shards import WrittenShard
from ditlab.data.stores.statistics import Moments
from ditlab.errors import UserError
from ditlab.storage.files import replacing, sync_folder, write_durably

INDEX_PREFIX = "blocks-"


def finish_store(
    path: Path,
    columns: Mapping[str, Column],
    shards: Sequence[WrittenShard],
    *,
    name: str,
    description: str,
    source: Source,
    text: TextFacts | None = None,
    attachments: Mapping[str, bytes] | None = None,
) -> StoreManifest:
    """Write the index file, the attachments (bytes by file name) and, last, the manifest of shards in a folder.

    A store that was there stays whole until the manifest takes the old one's place in a single rename; its shards are
    removed after that. Raises UserError where there are no rows; OSError as the disk does.
    """
    rows = sum(each.shard.rows for each in shards)
    if not rows:
        raise UserError(f"nothing to write to {path}: the source holds no rows; check the source.")
    stored = {column: _stored(column, columns, shards) for column in columns}
    attached = {plain_name(file): content for file, content in (attachments or {}).items()}
    hashes = {file: hashlib.sha256(content).hexdigest() for file, content in attached.items()}
    manifest = StoreManifest(
        name=plain_name(name),
        description=description,
        rows=rows,
        columns=stored,
        shards=tuple(each.shard for each in shards),
        block_rows=shards[0].block_rows,
        index=_write_index(path, shards),
        source=source,
        text=text,
        attachments=hashes,
        fingerprint=content_fingerprint(rows, stored, hashes),
    )
    sync_folder(path)
    for file, content in {**attached, MANIFEST_NAME: format_manifest(manifest)}.items():
        write_durably(path / file, content)
    remove_strays(path, manifest)
    return manifest


def remove_strays(path: Path, manifest: StoreManifest) -> None:
    """Remove shards and index files that the manifest does not name; open maps of them stay valid."""
    named = {shard.file for shard in manifest.shards} | {manifest.index.file if manifest.index else ""}
    for stray in (*path.glob("*.arrow"), *path.glob(f"{INDEX_PREFIX}*.bin")):
        if stray.name not in named:
            stray.unlink(missing_ok=True)


def _write_index(path: Path, shards: Iterable[WrittenShard]) -> IndexFile:
    digest = hashlib.sha256()
    for each in shards:
        digest.update(each.index)
    name = f"{INDEX_PREFIX}{digest.hexdigest()[:12]}.bin"
    with replacing(path / name) as file:
        for each in shards:
            file.write(each.index)
        size = file.tell()
    return IndexFile(file=name, bytes=size, sha256=digest.hexdigest())


def _stored(name: str, columns: Mapping[str, Column], shards: Sequence[WrittenShard]) -> StoredColumn:
    place = sorted(columns).index(name)
    moments = Moments()
    for each in shards:
        moments = moments.merge(each.moments[name])
    blocks = (block for each in shards for block in _digests(each, place, entry_bytes(len(columns))))
    return StoredColumn(**columns[name].model_dump(), statistics=moments.statistics(), sha256=column_hash(blocks))


def _digests(shard: WrittenShard, place: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Iterate over the rows and the digest of one column in each block of a shard."""
    index, start = shard.index, 16 + place * DIGEST_BYTES
    for number, rows in enumerate(shard.rows_of_blocks):
        yield rows, index[number * size + start : number * size + start + DIGEST_BYTES]
