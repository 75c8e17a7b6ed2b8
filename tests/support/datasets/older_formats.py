"""Stores as older versions of the format have them."""

import json
from pathlib import Path
from typing import Any


def before_blocks(keys: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's keys without those of blocks, which version 3 of the format brought."""
    keys = {name: value for name, value in keys.items() if name not in ("index", "block_rows")}
    for shard in keys.get("shards", ()):
        del shard["blocks"]
    return keys


def write_as_version_1(folder: Path) -> None:
    """Write the manifest of a store, each of whose shards has one block, as before it had a checksum."""
    file = folder / "store.json"
    keys = before_blocks(json.loads(file.read_text())) | {"version": 1}
    del keys["checksum"]
    for index in folder.glob("blocks-*.bin"):
        index.unlink()
    file.write_text(json.dumps(keys))
