"""Shards of MosaicML's format MDS, written by hand as its README describes them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"int": 8, "float32": 4}
"""Bytes of the encodings of a fixed size."""


def encode(encoding: str, value: Any) -> bytes:
    if encoding == "str":
        return value if isinstance(value, bytes) else value.encode()
    if encoding in SIZES:
        return np.dtype({"int": "<i8", "float32": "<f4"}[encoding]).type(value).tobytes()
    return json.dumps(value).encode() if encoding == "json" else bytes(value)


def shard_bytes(columns: Mapping[str, str], samples: Sequence[Mapping[str, Any]]) -> bytes:
    """A shard's file; columns are sorted by name."""
    names = sorted(columns)
    config = json.dumps({"column_names": names, "format": "mds", "version": 2}).encode()
    bodies = []
    for sample in samples:
        values = [encode(columns[name], sample[name]) for name in names]
        free = [len(value) for name, value in zip(names, values, strict=True) if columns[name] not in SIZES]
        bodies.append(np.array(free, "<u4").tobytes() + b"".join(values))
    offsets = np.array([0, *map(len, bodies)], np.uint32).cumsum().astype("<u4") + 4 * (len(bodies) + 2) + len(config)
    return np.uint32(len(bodies)).tobytes() + offsets.tobytes() + config + b"".join(bodies)


def write_mds(folder: Path, columns: Mapping[str, str], shards: Sequence[Sequence[Mapping[str, Any]]]) -> Path:
    """Write shards and their index into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    entries = []
    for number, samples in enumerate(shards):
        file, content = f"shard.{number:05d}.mds", shard_bytes(columns, samples)
        (folder / file).write_bytes(content)
        entries.append(
            {
                "column_encodings": [columns[name] for name in names],
                "column_names": names,
                "column_sizes": [SIZES.get(columns[name]) for name in names],
                "compression": None,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": file, "bytes": len(content), "hashes": {}},
                "samples": len(samples),
                "size_limit": 67108864,
                "version": 2,
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return folder
