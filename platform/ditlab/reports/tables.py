"""Tables in Parquet files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ditlab.storage.files import replacing


def save_table(columns: Mapping[str, np.ndarray], path: Path, facts: Mapping[str, Any] | None = None) -> Path:
    """Write columns of equal length to `path`, atomically; raises OSError where the disk refuses.

    `facts` go into the schema's metadata, as JSON under the key `ditlab`. Folders are made as needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if facts:
        table = table.replace_schema_metadata({"ditlab": json.dumps(facts)})
    with replacing(path) as file:
        pq.write_table(table, file)
    return path
